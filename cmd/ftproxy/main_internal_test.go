package main

import (
	"flag"
	"os"
	"testing"
)

// asFtproxy makes the test binary be ftproxy, for tests of the process.
const asFtproxy = "TEST_AS_FTPROXY"

// rewriting tells whether `-rewrite` was given: what is generated is written into README.md and testdata.
func rewriting() bool { return flag.Lookup("rewrite").Value.String() == "true" }

func TestMain(m *testing.M) {
	if os.Getenv(asFtproxy) != "" {
		main()
		os.Exit(exitClean)
	}
	flag.Bool("rewrite", false, "write what is generated into README.md and testdata")
	os.Exit(m.Run())
}
