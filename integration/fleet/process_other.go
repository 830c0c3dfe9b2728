//go:build unix && !linux

package fleet

import "syscall"

// childAttributes puts a child into a group of its own, so that a Ctrl-C reaches the parent alone.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
