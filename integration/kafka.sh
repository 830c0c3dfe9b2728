#!/usr/bin/env bash
# A real Apache Kafka (one KRaft node) on loopback, from its Maven artifacts; needs Java 17 or newer, and Maven once.
#
#   kafka.sh libs               fetch the jars, once; print their folder
#   kafka.sh run DIR [PORT]     format DIR if it is new, then become the broker (default port 9092)
#   kafka.sh start DIR [PORT]   run in the background and wait until the port is open
#   kafka.sh stop DIR           end what start began: SIGTERM, and wait
#   kafka.sh kill DIR           the same with SIGKILL
#   kafka.sh tool CLASS ARG…    run one of Kafka's tools, such as org.apache.kafka.tools.TopicCommand
#
# The controller listens on PORT + 10000. KAFKA_LIBS overrides the jars' folder, KAFKA_HEAP the heap (512m), and
# KAFKA_CONF names a file with further broker properties, read when DIR is formatted.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
libs=${KAFKA_LIBS:-${XDG_CACHE_HOME:-$HOME/.cache}/kafka-4.1.1-libs}
log=(-Dorg.slf4j.simpleLogger.showDateTime=true)

libs() {
  if [ ! -f "$libs/.complete" ]; then
    mkdir -p "$libs"
    mvn -q -B -f "$here/kafka-pom.xml" dependency:copy-dependencies \
      -DoutputDirectory="$libs" -DincludeScope=runtime >&2
    touch "$libs/.complete"
  fi
}

open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

format() {
  local dir=$1 port=$2 controller=$(($2 + 10000)) new=$1/server.properties.new
  [ ! -f "$dir/server.properties" ] || return 0
  mkdir -p "$dir"
  cat >"$new" <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$controller
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$controller
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=$dir/data
num.partitions=3
offsets.topic.num.partitions=5
transaction.state.log.num.partitions=5
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
END
  if [ -n "${KAFKA_CONF:-}" ]; then cat "$KAFKA_CONF" >>"$new"; fi
  java "${log[@]}" -cp "$libs/*" kafka.tools.StorageTool format \
    -t "$(java -cp "$libs/*" kafka.tools.StorageTool random-uuid)" -c "$new" >"$dir/format.log" 2>&1 ||
    { head -5 "$dir/format.log" >&2; return 1; }
  mv "$new" "$dir/server.properties"
}

run() {
  local dir=$1 port=${2:-9092}
  if open "$port"; then echo "port $port is taken" >&2; return 1; fi
  mkdir -p "$dir"; dir=$(cd "$dir" && pwd)
  format "$dir" "$port"
  exec java -Dorg.slf4j.simpleLogger.defaultLogLevel=warn "${log[@]}" -Xmx"${KAFKA_HEAP:-512m}" \
    -cp "$libs/*" kafka.Kafka "$dir/server.properties"
}

start() {
  local dir=$1 port=${2:-9092}
  mkdir -p "$dir"
  (run "$dir" "$port") </dev/null >"$dir/kafka.log" 2>&1 &
  local pid=$!
  echo "$pid" >"$dir/pid"
  for _ in $(seq 1 240); do
    kill -0 "$pid" 2>/dev/null || { tail -20 "$dir/kafka.log" >&2; return 1; }
    if open "$port"; then return; fi
    sleep 0.25
  done
  echo "kafka did not open port $port" >&2
  return 1
}

end() {
  local pid
  pid=$(cat "$2/pid")
  kill -"$1" "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
}

case ${1:-} in
  libs) libs; echo "$libs" ;;
  run | start) libs; "$@" ;;
  stop) end TERM "$2" ;;
  kill) end KILL "$2" ;;
  tool) libs; shift; exec java -Dorg.slf4j.simpleLogger.defaultLogLevel=error -cp "$libs/*" "$@" ;;
  *) sed -n '2,13p' "$0"; exit 2 ;;
esac
