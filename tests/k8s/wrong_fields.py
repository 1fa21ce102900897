"""Mistakes in the manifests: a text of a real file, a wrong one in its place, and a pattern of the fault."""

from __future__ import annotations

WRONG = {
    ("base/ray-cluster.yaml",): [
        ('rayVersion: "2.60.0"', "rayVersion: 2.6", "RayCluster/idc: spec.rayVersion: 2.6"),
        ("maxReplicas: 16", "maxReplica: 16", r"RayCluster/idc: spec.workerGroupSpecs\[0\]: .*'maxReplica'"),
        ("image: idc\n", "imag: idc\n", r"RayCluster/idc: spec.headGroupSpec.*containers\[0\]: .*'imag'"),
    ],
    ("base/ray-service.yaml",): [
        ("stepSizePercent: 20", "stepSizePercent: 200", "RayService/captions: .*stepSizePercent: 200"),
    ],
    ("jobs/cpu/ray-job.yaml",): [
        ("submissionMode: K8sJobMode", "submissionMode: K8sJob", "RayJob/job: spec.submissionMode: "),
    ],
    ("base/mlflow.yaml",): [
        ("  replicas: 2", "  replica: 2", "Deployment/mlflow: spec: .*'replica'"),
    ],
    ("base/postgres.yaml",): [
        ("containerPort: 5432", "containerPort: '5432'", r"StatefulSet/postgres: .*ports\[0\].containerPort"),
    ],
    ("base/network-policies.yaml",): [
        ("policyTypes: [Ingress, Egress]", "policyType: [Egress]", "NetworkPolicy/default-deny: spec: "),
    ],
    ("base/disruption-budgets.yaml",): [
        ("maxUnavailable: 1", "maxUnavaible: 1", "PodDisruptionBudget/mlflow: spec: "),
    ],
    ("base/shared-folder.yaml",): [
        ("storage: 500Gi", "storage: [500]", "PersistentVolumeClaim/shared: spec.resources.requests"),
    ],
    ("overlays/kueue/queue.yaml",): [
        ("clusterQueue: idc", "clusterQeue: idc", "LocalQueue/jobs: spec: "),
    ],
}  # fmt: skip
"""(File,) -> (right text, wrong text, pattern): wrong fields and values that the schemas find in their file."""

WRONG_TOGETHER = {
    ("base", "base/ray-cluster.yaml"): [
        ('rayVersion: "2.60.0"', 'rayVersion: "2.59.0"', "spec.rayVersion: 2.59.0, and requirements.lock"),
        ("minReplicas: 0", "minReplicas: 3", r"workerGroupSpecs\[0\].replicas: 0 is not between"),
        ("mode: token", "mode: disabled", "authOptions.mode: anyone"),
        ('num-cpus: "0"', 'num-cpus: "2"', 'num-cpus: must be "0"'),
        ("{name: redis, key: password}", "{name: redis, key: pass}", "there is no key 'pass' in a Secret 'redis'"),
        ("claimName: shared", "claimName: share", "there is no PersistentVolumeClaim 'share'"),
        ("serviceAccountName: ray-head", "serviceAccountName: ray", "there is no ServiceAccount 'ray'"),
        ("{name: dashboard, containerPort: 8265}", "{name: dashboard, containerPort: 8266}",
         "dashboard is 8266, and Ray listens elsewhere"),
        ("{name: dashboard, containerPort: 8265}", "{name: web, containerPort: 8265}", "needs one named dashboard"),
        ("app.kubernetes.io/name: kuberay, ", "app.kubernetes.io/name: ray, ",
         "app.kubernetes.io/name must be kuberay"),
        ("idc/role: head}", "idc/role: head, ray.io/group: head}", "the operator overwrites ray.io/group"),
        ('limits: {cpu: "2", memory: 8Gi', "limits: {cpu: 1500m, memory: 8Gi", "limits.cpu: must be whole"),
        ("redisAddress: redis:6379", "redisAddress: redi:6379", "there is no Service 'redi'"),
        ('requests: {cpu: "10", memory: 64Gi', 'requests: {cpu: "12", memory: 64Gi', "fit no machine of 1 GPUs"),
        ("ray.io/group: gpu}", "ray.io/group: cpu}", r"workerGroupSpecs\[1\].*needs podAffinity to its own pods"),
    ],
    ("base", "base/ray-service.yaml"): [
        ("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false", "must be true for NewCluster"),
        ("- {name: serve, containerPort: 8000}\n", "\n", "headGroupSpec.*needs one named serve"),
        ("{name: serve, containerPort: 8000}", "{name: serve, containerPort: 8001}",
         "8000 is not the port named serve, 8001"),
        ("excludeHeadPodFromServeSvc: true", "excludeHeadPodFromServeSvc: false",
         "excludeHeadPodFromServeSvc: must be true"),
        ("maxSurgePercent: 100", "maxSurgePercent: 10", "stepSizePercent: is refused above maxSurgePercent"),
        ("rayClusterDeletionDelaySeconds: 120", "rayClusterDeletionDelaySeconds: 30",
         "drain_s: 60 is not below rayClusterDeletionDelaySeconds"),
        ("gatewayClassName: istio", "gatewayClassName: envoy",
         "Gateway captions-gateway must be there with the operator's own spec"),
    ],
    ("base", "base/serve-config.yaml"): [
        ("waiting_pairs: 512", "waiting_pair: 512", r"applications\[0\].args.limits.waiting_pair: no such setting"),
        ("proxy_location:", "proxy_locations:", "serveConfigV2.proxy_locations: no such setting of Serve"),
        ("max_replicas: 8", "max_replicas: 80", "with maxReplicas nodes: replicas: 80 workers"),
        ("max_replicas_per_node: 1", "max_replicas_per_node: 2", "front_replicas: all may be on one node"),
    ],
    ("base", "base/mlflow.yaml"): [
        ("capabilities: {drop: [ALL]}", "capabilities: {add: [SYS_ADMIN]}",
         "Deployment/mlflow: .*capabilities: must drop ALL"),
        ("targetPort: http", "targetPort: web", "Service/mlflow: .*no pod of the selector has a port 'web'"),
    ],
    ("base", "base/postgres.yaml"): [
        ("valueFrom: {secretKeyRef: {name: postgres, key: password}}", "value: secret",
         "POSTGRES_PASSWORD is written here"),
    ],
    ("base", "base/network-policies.yaml"): [
        ("app.kubernetes.io/name: postgres", "app.kubernetes.io/name: postgre", "selects no pods"),
        ("port: 8265", "port: 8266", "NetworkPolicy/dashboard: .*no selected pod listens on 8266"),
        ("gateway-name: captions}", "gateway-name: captions-gateway}", r"must let only the pods of \['captions'\]"),
        ("gateway-name: captions-gateway}", "gateway-name: captions-gate}",
         "NetworkPolicy/captions: there is no Gateway 'captions-gate'"),
        ("        - ipBlock: {cidr: 169.254.20.10/32}\n", "",
         "NetworkPolicy/names: .*a DNS cache of the node is out of reach"),
    ],
    ("base", "base/disruption-budgets.yaml"): [
        ("minAvailable: 1", "minAvailable: 2", "PodDisruptionBudget/fronts: .*would block every drain"),
        ("ray.io/group: front", "idc/role: worker", r"selects the groups \['front', 'model'\]"),
    ],
    ("base", "images/kustomization.yaml"): [
        ("newTag: 0.1.0-ray2.60.0-cuda", "newTag: latest", "has no version"),
        ("digest: sha256:745", "digest: sha256:", "StatefulSet/redis: .*has no digest"),
    ],
    ("jobs/render", "jobs/render/kustomization.yaml"): [
        ("jobs/render.py", "jobs/rendr.py", "RayJob/render: spec.entrypoint: the image has no /app/jobs/rendr.py"),
        ("workers=16", "workrs=16", "RayJob/render: spec.entrypoint: .*did you mean"),
        ("workers=16", "workers=17", "17 workers of 1 CPUs each, and there is room for 16"),
    ],
    ("jobs/sweep", "jobs/sweep/kustomization.yaml"): [
        ("table02.yaml", "table2.yaml", "the image has no /app/jobs/configs/procap/sweeps/table2.yaml"),
    ],
    ("jobs/pretrain-namc", "jobs/gpu8/kustomization.yaml"): [
        ("ephemeral-storage: 800Gi, nvidia.com/gpu: 8", "ephemeral-storage: 800Gi, nvidia.com/gpu: 4",
         "train.num_workers: 8 workers"),
        ("sizeLimit: 192Gi", "sizeLimit: 64Gi", "/dev/shm must hold Ray's object store"),
        ("medium: Memory, ", "", "/dev/shm must be an emptyDir of medium Memory"),
    ],
    ("jobs/evaluate", "jobs/evaluate/kustomization.yaml"): [
        ("$IDC_RUNS", "$RUNS", "'RUNS' is not in the ConfigMap settings"),
    ],
    ("jobs/render", "jobs/cpu/ray-job.yaml"): [
        ("  activeDeadlineSeconds: 86400\n", "", "activeDeadlineSeconds: missing"),
        ("      restartPolicy: Never\n", "", "submitterPodTemplate.spec.restartPolicy: missing"),
    ],
    ("base", "base/gateway.yaml"): [
        ("protocol: HTTPS", "protocol: HTTP", "Gateway/captions: .*must be HTTPS with tls"),
        ("name: captions-tls", "name: captions-tl", "Gateway/captions: .*there is no Secret 'captions-tl'"),
        ("service-type: ClusterIP", "service-type: LoadBalancer", "or it is open to all in clear"),
        ("name: captions-gateway-istio", "name: captions-gateway", "no HTTPRoute leads from a Gateway with TLS"),
        ("sectionName: https", "sectionName: http", "HTTPRoute/captions: .*there is no listener 'http' of 'captions'"),
        ("protocol: HTTP, port: 80", "protocol: HTTP, port: 8080", "must be there with the operator's own spec"),
    ],
    ("base", "base/redis.yaml"): [
        (", ephemeral-storage: 64Mi", "", "requests.ephemeral-storage: missing"),
        ("maxmemory 3gb", "maxmemory 4gb", "leaves less than a fifth of the memory"),
        ("maxmemory 3gb", "maxmemory 512m", "does not hold two uploads"),
        ("noeviction", "allkeys-lru", "the state of heads is lost without a word"),
        ("storage: 20Gi", "storage: 5Gi", "smaller than four times maxmemory"),
    ],
    ("jobs/evaluate", "jobs/gpu/kustomization.yaml"): [
        ("topology.kubernetes.io/zone", "kubernetes.io/hostname", "needs podAffinity to its own pods"),
    ],
}  # fmt: skip
"""(Folder, file) -> the same: values that are wrong only with what they refer to."""
