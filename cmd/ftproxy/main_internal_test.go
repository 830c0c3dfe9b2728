package main

import (
	"os"
	"testing"
)

// asFtproxy makes the test binary be ftproxy, for tests of the process.
const asFtproxy = "TEST_AS_FTPROXY"

func TestMain(m *testing.M) {
	if os.Getenv(asFtproxy) != "" {
		main()
		os.Exit(exitClean)
	}
	os.Exit(m.Run())
}
