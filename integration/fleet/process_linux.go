package fleet

import "syscall"

// childAttributes puts a child into a group of its own, so that a Ctrl-C reaches the parent alone, and has the kernel
// kill it when the parent dies without a chance to do so.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
