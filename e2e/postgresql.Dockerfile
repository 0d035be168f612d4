# PostgreSQL for the tests of edl sql --submit: Debian's, started by a user without rights.
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE}
# Without a cluster of Debian's: the pod makes its own.
RUN mkdir -p /etc/postgresql-common && echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.conf \
 && apt-get update && apt-get install -y --no-install-recommends postgresql \
 && rm -rf /var/lib/apt/lists/* && ln -s /usr/lib/postgresql/*/bin /usr/lib/postgresql/bin \
 && useradd --uid 1000 postgresql
ENV PATH=/usr/lib/postgresql/bin:$PATH LC_ALL=C.UTF-8
USER 1000:1000
