// Command ftproxy is a sidecar that gives stream applications fault tolerance without changing them.
//
// This is the only package that knows everybody: it reads the configuration, makes sources, sinks and the replica, runs
// them, and closes them in reverse.
//
//	environment ─▶ load ─▶ config ─▶ wire ─▶ node.run ─▶ exit status
//	                 │                          ├─ admin address: livez, readyz, status, metrics, dead letters
//	                 └▶ all mistakes at once    ├─ listening sources ─▶ gate ─▶ replica ─▶ peers
//	                                            └─ each tenure: sinks and polling sources
//
// Files: main.go (commands, exit statuses), config.go (the variables), help.go (what they are for), load.go (reading
// and judging them), fields.go (the tags), mistakes.go (the list, the nearest name), bytesize.go, endpoint.go (URLs),
// options.go and optionhelp.go (their options), recovery.go (what can be held), ports.go and wire.go (making sources
// and sinks), tlsfiles.go, gate.go (the intake while the replica starts), run.go and signals.go (the life of the
// process), admin.go, dead.go, metrics.go and traffic.go (the admin address), check.go, configcmd.go, recover.go,
// logging.go, demo*.go (the demo).
package main
