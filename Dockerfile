# vidspec on a CPU:
#   docker build --build-arg PIP_EXTRA_INDEX_URL=ADDRESS --tag vidspec .
#   docker run --rm --volume "$PWD:/clips" --volume vidspec-models:/models vidspec caption /clips/clip.mp4
# ADDRESS is PyTorch's index of CPU wheels ("Get Started", CPU). Without it torch comes with CUDA, which is 5.8 GB.
FROM python:3.12-slim

ARG PIP_EXTRA_INDEX_URL
ENV HF_HOME=/models

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY profiles profiles
COPY vidspec vidspec
RUN python -m pip install --no-cache-dir --constraint constraints/cpu.txt . \
    && rm -rf /src/* \
    && useradd --create-home vidspec \
    && install --directory --owner=vidspec /models

USER vidspec
WORKDIR /clips
VOLUME /models
ENTRYPOINT ["vidspec"]
CMD ["--help"]
