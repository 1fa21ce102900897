"""Mistakes in the manifests: a text of a real file, a wrong one in its place, and a pattern of the fault."""

from __future__ import annotations

WRONG = [
    # file, wrong text instead of right text, what must be said
    ("base/ray-cluster.yaml", 'rayVersion: "2.60.0"', "rayVersion: 2.6", "RayCluster/idc: spec.rayVersion: 2.6"),
    (
        "base/ray-cluster.yaml",
        "maxReplicas: 16",
        "maxReplica: 16",
        r"RayCluster/idc: spec.workerGroupSpecs\[0\]: .*'maxReplica'",
    ),
    (
        "base/ray-cluster.yaml",
        "image: idc\n",
        "imag: idc\n",
        r"RayCluster/idc: spec.headGroupSpec.*containers\[0\]: .*'imag'",
    ),
    (
        "base/ray-service.yaml",
        "stepSizePercent: 20",
        "stepSizePercent: 200",
        "RayService/captions: .*stepSizePercent: 200",
    ),
    (
        "jobs/cpu/ray-job.yaml",
        "submissionMode: K8sJobMode",
        "submissionMode: K8sJob",
        "RayJob/job: spec.submissionMode: ",
    ),
    ("base/mlflow.yaml", "  replicas: 2", "  replica: 2", "Deployment/mlflow: spec: .*'replica'"),
    (
        "base/postgres.yaml",
        "containerPort: 5432",
        "containerPort: '5432'",
        r"StatefulSet/postgres: .*ports\[0\].containerPort",
    ),
    (
        "base/network-policies.yaml",
        "policyTypes: [Ingress, Egress]",
        "policyType: [Egress]",
        "NetworkPolicy/default-deny: spec: ",
    ),
    ("base/disruption-budgets.yaml", "maxUnavailable: 1", "maxUnavaible: 1", "PodDisruptionBudget/mlflow: spec: "),
    (
        "base/shared-folder.yaml",
        "storage: 500Gi",
        "storage: [500]",
        "PersistentVolumeClaim/shared: spec.resources.requests",
    ),
    ("overlays/kueue/queue.yaml", "clusterQueue: idc", "clusterQeue: idc", "LocalQueue/jobs: spec: "),
]
"""Wrong fields and values, found in their file by the schemas."""

WRONG_TOGETHER = [
    # folder, file, wrong text instead of right text, what must be said
    (
        "base",
        "base/ray-cluster.yaml",
        'rayVersion: "2.60.0"',
        'rayVersion: "2.59.0"',
        "spec.rayVersion: 2.59.0, and requirements.lock",
    ),
    (
        "base",
        "base/ray-cluster.yaml",
        "minReplicas: 0",
        "minReplicas: 3",
        r"workerGroupSpecs\[0\].replicas: 0 is not between",
    ),
    ("base", "base/ray-cluster.yaml", "mode: token", "mode: disabled", "authOptions.mode: anyone"),
    ("base", "base/ray-cluster.yaml", 'num-cpus: "0"', 'num-cpus: "2"', 'num-cpus: must be "0"'),
    (
        "base",
        "base/ray-cluster.yaml",
        "{name: redis, key: password}",
        "{name: redis, key: pass}",
        "there is no key 'pass' in a Secret 'redis'",
    ),
    (
        "base",
        "base/ray-cluster.yaml",
        "claimName: shared",
        "claimName: share",
        "there is no PersistentVolumeClaim 'share'",
    ),
    (
        "base",
        "base/ray-cluster.yaml",
        "serviceAccountName: ray-head",
        "serviceAccountName: ray",
        "there is no ServiceAccount 'ray'",
    ),
    (
        "base",
        "base/ray-service.yaml",
        "enableInTreeAutoscaling: true",
        "enableInTreeAutoscaling: false",
        "must be true for NewCluster",
    ),
    (
        "base",
        "base/serve-config.yaml",
        "waiting_pairs: 512",
        "waiting_pair: 512",
        r"applications\[0\].args.limits.waiting_pair: no such setting",
    ),
    (
        "base",
        "base/serve-config.yaml",
        "proxy_location:",
        "proxy_locations:",
        "serveConfigV2.proxy_locations: no such setting of Serve",
    ),
    (
        "base",
        "base/serve-config.yaml",
        "max_replicas: 8",
        "max_replicas: 80",
        "with maxReplicas nodes: replicas: 80 workers",
    ),
    (
        "base",
        "base/mlflow.yaml",
        "capabilities: {drop: [ALL]}",
        "capabilities: {add: [SYS_ADMIN]}",
        "Deployment/mlflow: .*capabilities: must drop ALL",
    ),
    (
        "base",
        "base/mlflow.yaml",
        "targetPort: http",
        "targetPort: web",
        "Service/mlflow: .*no pod of the selector has a port 'web'",
    ),
    (
        "base",
        "base/postgres.yaml",
        "valueFrom: {secretKeyRef: {name: postgres, key: password}}",
        "value: secret",
        "POSTGRES_PASSWORD is written here",
    ),
    (
        "base",
        "base/network-policies.yaml",
        "app.kubernetes.io/name: postgres",
        "app.kubernetes.io/name: postgre",
        "selects no pods",
    ),
    (
        "base",
        "base/network-policies.yaml",
        "port: 8265",
        "port: 8266",
        "NetworkPolicy/dashboard: .*no selected pod listens on 8266",
    ),
    (
        "base",
        "base/disruption-budgets.yaml",
        "minAvailable: 2",
        "minAvailable: 3",
        "PodDisruptionBudget/captions: .*would block every drain",
    ),
    ("base", "images/kustomization.yaml", "newTag: 0.1.0-ray2.60.0-cuda", "newTag: latest", "has no version"),
    (
        "jobs/render",
        "jobs/render/kustomization.yaml",
        "jobs/render.py",
        "jobs/rendr.py",
        "RayJob/render: spec.entrypoint: the image has no /app/jobs/rendr.py",
    ),
    (
        "jobs/render",
        "jobs/render/kustomization.yaml",
        "workers=16",
        "workrs=16",
        "RayJob/render: spec.entrypoint: .*did you mean",
    ),
    (
        "jobs/render",
        "jobs/render/kustomization.yaml",
        "workers=16",
        "workers=17",
        "17 workers of 1 CPUs each, and there is room for 16",
    ),
    (
        "jobs/sweep",
        "jobs/sweep/kustomization.yaml",
        "table02.yaml",
        "table2.yaml",
        "the image has no /app/jobs/configs/procap/sweeps/table2.yaml",
    ),
    (
        "jobs/pretrain-namc",
        "jobs/pretrain-namc/kustomization.yaml",
        "value: 8",
        "value: 4",
        "train.num_workers: 8 workers",
    ),
    (
        "jobs/evaluate",
        "jobs/evaluate/kustomization.yaml",
        "$IDC_RUNS",
        "$RUNS",
        "'RUNS' is not in the ConfigMap settings",
    ),
]
"""Values that are wrong only with what they refer to."""
