# The submitter image: the light client, without TensorFlow, gRPC and NumPy. It submits jobs from inside a cluster and
# copies data to volumes.
#   docker build -t edl/submitter:dev -f images/submitter.Dockerfile .
ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS requirements
WORKDIR /build
COPY pyproject.toml images/requirements.py ./
RUN python3 requirements.py > requirements.txt

# What the client needs, in the versions that were tested together. None of EDL's own files: this layer changes seldom.
FROM ${PYTHON_IMAGE} AS dependencies
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# pip stays outside: it installs into the environment and is no part of it
RUN python3 -m venv --without-pip /opt/edl
WORKDIR /build
COPY constraints.txt images/slim.py ./
COPY --from=requirements /build/requirements.txt ./
RUN python3 -m pip --python /opt/edl/bin/python3 install --no-compile -c constraints.txt -r requirements.txt \
 && python3 slim.py /opt/edl

# EDL itself, as an overlay of the environment: a change of the code makes only this again.
FROM dependencies AS code
RUN python3 -m venv /opt/build && /opt/build/bin/python3 -m pip install -c constraints.txt scikit-build-core nanobind
COPY pyproject.toml README.md LICENSE ./
COPY platform platform
RUN EDL_NATIVE=0 /opt/build/bin/python3 -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . \
 && python3 -m pip --python /opt/edl/bin/python3 install --no-deps --no-compile --prefix /overlay dist/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -s /overlay -p /opt/edl /overlay

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="EDL submitter" \
      org.opencontainers.image.description="Elastic, fault-tolerant deep learning: the light client" \
      dev.edl.image="submitter"
COPY --from=dependencies /opt/edl /opt/edl
# Any uid may run this image: nothing asks for a line in /etc/passwd, a home of its own or a root that can be written.
RUN mkdir -p /home/edl /run/edl && chmod 1777 /home/edl /run/edl
ENV PATH=/opt/edl/bin:/usr/local/bin:/usr/bin:/bin HOME=/home/edl USER=edl \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
COPY --from=code /overlay /opt/edl
USER 1000:1000
WORKDIR /home/edl
ENTRYPOINT ["edl-role"]
