package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/alecthomas/kong"

	"ftproxy/logbuffer"
	"ftproxy/replica"
)

// commands are what can be typed behind ftproxy.
type commands struct {
	Run     runCmd     `cmd:"" default:"1" help:"Run a node (the default)."`
	Check   checkCmd   `cmd:"" help:"Judge the configuration, reach the endpoints, say what is guaranteed."`
	Demo    demoCmd    `cmd:"" help:"Show three replicas, a repeating upstream, a crashing downstream, and a verdict."`
	Config  configCmd  `cmd:"" help:"Print every variable and option with its default."`
	Recover recoverCmd `cmd:"" help:"Begin anew with a stopped node's data, after a quorum was lost for good."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// Exit statuses. They are part of the interface: README lists them.
const (
	exitClean       = 0
	exitFailure     = 1  // anything that has no status of its own
	exitConfig      = 2  // the configuration has mistakes, or the command line
	exitQuarantined = 3  // data damaged or incomplete, and nobody to get a good copy from
	exitStorage     = 4  // the disk failed, hung or is full, or another process uses the data folder
	exitDiverged    = 5  // this node's state differs from the majority's
	exitNoQuorum    = 6  // too few nodes still have the data: `ftproxy recover`
	exitLineage     = 7  // a peer or the data folder belongs to another life of the log
	exitVersion     = 8  // data of a newer version
	exitUnclean     = 9  // an orderly shutdown that could not drain or hand over in time; nothing is lost
	exitCorrupt     = 10 // a source or sink found damage
	exitRemoved     = 11 // another node has this one's name
	exitVerdict     = 13 // a demo or check that went through and found fault
)

// gcPercent makes the collector run at half as much garbage as usual: most of what lives are the newest tuples of a
// backlog, which are not worth their own size in garbage beside an application. GOGC overrides it.
const gcPercent = 50

func main() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
	var c commands
	parser, err := kong.New(&c, kong.Name("ftproxy"), kong.UsageOnError(),
		kong.Description("A sidecar that gives stream applications fault tolerance. Configured by environment variables: "+
			"see `ftproxy config`."),
		kong.BindTo(context.Background(), (*context.Context)(nil)))
	if err != nil {
		panic(err) // the structs above are wrong
	}
	command, err := parser.Parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "ftproxy:", err)
		os.Exit(exitConfig)
	}
	if err := command.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "ftproxy:", err)
		os.Exit(exitStatus(err))
	}
}

// exitStatus is the status for an error that a command returned.
func exitStatus(err error) int {
	if _, ok := errors.AsType[mistakes](err); ok {
		return exitConfig
	}
	for _, known := range []struct {
		err    error
		status int
	}{
		{replica.ErrConfig, exitConfig},
		{replica.ErrQuarantined, exitQuarantined},
		{replica.ErrStorage, exitStorage},
		{replica.ErrDiverged, exitDiverged},
		{replica.ErrNoQuorum, exitNoQuorum},
		{replica.ErrLineage, exitLineage},
		{replica.ErrVersion, exitVersion},
		{replica.ErrRemoved, exitRemoved},
		{errVerdict, exitVerdict},
		{errUnreachable, exitVerdict},
		{errUnclean, exitUnclean},
		{logbuffer.ErrCorrupt, exitCorrupt},
	} {
		if errors.Is(err, known.err) {
			return known.status
		}
	}
	return exitFailure
}

// versionCmd is `ftproxy version`.
type versionCmd struct{}

// Run prints the version that the Go toolchain recorded.
func (versionCmd) Run() error {
	_, err := fmt.Fprintln(os.Stdout, "ftproxy", version())
	return err
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	text := info.Main.Version
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if i >= 0 {
		text += " " + info.Settings[i].Value
	}
	return text + " " + info.GoVersion
}
