# Two images: `docker build .` is ftproxy; `docker build --target load .` is the load of docker-compose.yml.
FROM golang:1.26 AS build
ARG GOPROXY
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags="-s -w" -o /out/ ./cmd/ftproxy ./integration/load && mkdir /out/data

FROM scratch AS load
COPY --from=build /out/load /load
USER 65532:65532
ENTRYPOINT ["/load"]

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/ftproxy /ftproxy
COPY --from=build --chown=65532:65532 /out/data /var/lib/ftproxy
# The root can be read-only: everything is written to this folder.
VOLUME /var/lib/ftproxy
ENV FTPROXY_DATA_DIR=/var/lib/ftproxy FTPROXY_ADMIN_ADDR=:7401
USER 65532:65532
ENTRYPOINT ["/ftproxy"]
