package main

import (
	"sync/atomic"
	"time"
)

// prefix is what every variable's name begins with.
const prefix = "FTPROXY_"

// config is the whole configuration, as plain values. load fills it in; nothing else reads the environment.
//
// The tags are all there is to say about a variable: env its name without the prefix, envDefault, unit, example
// (for the message about a mistake), oneof (the only values), secret (also read from the file named by NAME_FILE),
// later (refused in this version), group (the first of its kind). What each is for stands in help.go.
type config struct {
	Name              string        `env:"NAME" unit:"name" envDefault:"ftproxy" group:"What it does" example:"enrich"`
	Source            string        `env:"SOURCE" unit:"URLs" example:"http://:8080/orders"`
	Operator          string        `env:"OPERATOR" unit:"URL" later:"true"`
	Sink              string        `env:"SINK" unit:"URLs" example:"http://127.0.0.1:3000/orders"`
	Recovery          string        `env:"RECOVERY" oneof:"precise rollback gap" example:"precise"`
	State             string        `env:"STATE" later:"true"`
	Dedup             string        `env:"DEDUP" unit:"rule" example:"header:Idempotency-Key"`
	DedupIDs          int           `env:"DEDUP_IDS" envDefault:"200000" unit:"ids" min:"1"`
	DedupAge          time.Duration `env:"DEDUP_AGE" envDefault:"1h" unit:"duration"`
	Sessions          int           `env:"SESSIONS" envDefault:"10000" unit:"sessions" min:"1"`
	SessionAge        time.Duration `env:"SESSION_AGE" envDefault:"24h" unit:"duration"`
	SinkIdempotent    bool          `env:"SINK_IDEMPOTENT" example:"true"`
	DropReaders       string        `env:"DROP_READERS" unit:"names" example:"audit"`
	MaxAttempts       int           `env:"MAX_ATTEMPTS" envDefault:"0" unit:"attempts" min:"0"`
	Node              string        `env:"NODE" unit:"name" group:"Replication" example:"enrich-0"`
	Peers             string        `env:"PEERS" unit:"list" example:"a=host0:7400,b=host1:7400,c=host2:7400"`
	PeersEven         bool          `env:"PEERS_EVEN" example:"true"`
	Listen            string        `env:"LISTEN" unit:"host:port" example:":7400"`
	DataDir           string        `env:"DATA_DIR" unit:"path" example:"/var/lib/ftproxy"`
	ElectionTimeout   time.Duration `env:"ELECTION_TIMEOUT" envDefault:"500ms" unit:"duration"`
	BufferMaxBytes    byteSize      `env:"BUFFER_MAX_BYTES" envDefault:"4GiB" min:"1" unit:"bytes" group:"Limits"`
	BufferTailBytes   byteSize      `env:"BUFFER_TAIL_BYTES" envDefault:"32MiB" min:"1" unit:"bytes"`
	SegmentBytes      byteSize      `env:"SEGMENT_BYTES" envDefault:"64MiB" min:"1" unit:"bytes"`
	SnapshotBytes     byteSize      `env:"SNAPSHOT_BYTES" envDefault:"256MiB" min:"1" unit:"bytes"`
	DiskFreeBytes     byteSize      `env:"DISK_FREE_BYTES" envDefault:"0" unit:"bytes"`
	TupleMaxBytes     byteSize      `env:"TUPLE_MAX_BYTES" envDefault:"1MiB" min:"1" unit:"bytes"`
	DeadMax           int           `env:"DEAD_MAX" envDefault:"10000" unit:"letters" min:"1"`
	Connections       int           `env:"CONNECTIONS" envDefault:"1000" unit:"connections" min:"1"`
	DrainTimeout      time.Duration `env:"DRAIN_TIMEOUT" envDefault:"20s" unit:"duration"`
	StallAfter        time.Duration `env:"STALL_AFTER" envDefault:"30s" unit:"duration"`
	TLSCertFile       string        `env:"TLS_CERT_FILE" unit:"path" group:"Security" example:"/etc/ftproxy/tls.crt"`
	TLSKeyFile        string        `env:"TLS_KEY_FILE" unit:"path" example:"/etc/ftproxy/tls.key"`
	TLSCAFile         string        `env:"TLS_CA_FILE" unit:"path" example:"/etc/ftproxy/ca.crt"`
	Insecure          bool          `env:"INSECURE" example:"true"`
	KafkaTLSCAFile    string        `env:"KAFKA_TLS_CA_FILE" unit:"path" group:"Kafka" example:"/etc/kafka/ca.crt"`
	KafkaTLSCertFile  string        `env:"KAFKA_TLS_CERT_FILE" unit:"path" example:"/etc/kafka/client.crt"`
	KafkaTLSKeyFile   string        `env:"KAFKA_TLS_KEY_FILE" unit:"path" example:"/etc/kafka/client.key"`
	KafkaSASL         string        `env:"KAFKA_SASL" oneof:"PLAIN SCRAM-SHA-256 SCRAM-SHA-512" example:"SCRAM-SHA-512"`
	KafkaUser         string        `env:"KAFKA_USER" unit:"text" example:"ftproxy"`
	KafkaPassword     string        `env:"KAFKA_PASSWORD" unit:"text" secret:"true"`
	SinkAuthorization string        `env:"SINK_AUTHORIZATION" unit:"text" secret:"true" example:"Bearer …"`
	AdminAddr         string        `env:"ADMIN_ADDR" envDefault:"127.0.0.1:7401" group:"Operation" unit:"host:port"`
	LogFormat         string        `env:"LOG_FORMAT" envDefault:"text" oneof:"text json"`
	LogLevel          string        `env:"LOG_LEVEL" envDefault:"info" oneof:"debug info warn error"`

	// What load makes of them.

	sources, sinks []endpoint
	dropReaders    []string
	peers          map[string]string

	badCertificates *atomic.Uint64 // times that changed TLS files could not be read
}
