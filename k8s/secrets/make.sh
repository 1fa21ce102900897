#!/bin/sh
# Write the secrets of k8s/secrets/kustomization.yaml as random values, for this user's eyes; files that exist are kept.
# Instead of the object store's pair of keys, object-store.env takes those of a cloud's bucket; endpoint.env takes the key
# of the language model that describes pairs. tls.crt and tls.key are the certificate of the Ingress: without your own, one
# that signs itself, for the host that is named here: sh make.sh captions.example.org
set -eu
umask 077
cd "$(dirname "$0")"
random() { head -c 32 /dev/urandom | od -An -vtx1 | tr -d ' \n'; }
write() { # FILE LINE...
    file=$1; shift
    [ -e "$file" ] || printf '%s\n' "$@" > "$file"
}
write postgres.env "password=$(random)"
write redis.env "password=$(random)"
write object-store.env "AWS_ACCESS_KEY_ID=idc" "AWS_SECRET_ACCESS_KEY=$(random)"
write endpoint.env "OPENAI_API_KEY="
write grafana.env "password=$(random)"
host=${1:-captions.example.org}
[ -e tls.crt ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 365 -subj "/CN=$host" \
    -addext "subjectAltName=DNS:$host" -keyout tls.key -out tls.crt 2> /dev/null
