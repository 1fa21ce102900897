# MLflow's own image with the drivers of Postgres and S3, which it leaves out.
FROM ghcr.io/mlflow/mlflow:v3.17.2
RUN pip install --no-cache-dir psycopg2-binary==2.9.11 boto3==1.44.5
USER 1000
