package main

import (
	"errors"
	"net"
	"strings"

	"ftproxy/replica"
)

// ownAddress is an address at which this node listens.
type ownAddress struct{ variable, what, addr string }

// ownAddresses lists all at which this node listens.
func (c *config) ownAddresses() []ownAddress {
	all := []ownAddress{{prefix + "ADMIN_ADDR", "the admin address", c.AdminAddr}}
	if listen := c.listenAddr(); listen != "" {
		variable := prefix + "LISTEN"
		if c.Listen == "" {
			variable = prefix + "PEERS"
		}
		all = append(all, ownAddress{variable, "this node's address for its peers", listen})
	}
	for i := range c.sources {
		if e := &c.sources[i]; e.scheme.listens {
			all = append(all, ownAddress{prefix + "SOURCE", "the source " + e.text, e.address()})
		}
	}
	return all
}

// validateAddresses refuses an address that two would listen at, and a sink that sends to this node itself.
func (c *config) validateAddresses(wrong *mistakes, hostname string) {
	own := c.ownAddresses()
	for i, b := range own {
		for _, a := range own[:i] {
			if clash(a.addr, b.addr) {
				wrong.add(b.variable, "", "%s listens at %s, where %s (%s) does: give one of them another port", b.what, b.addr,
					a.what, a.variable)
			}
		}
	}
	for i := range c.sinks {
		for _, host := range c.sinks[i].hosts {
			for _, a := range own {
				if reaches(host, a.addr, hostname) {
					wrong.add(prefix+"SINK", c.sinks[i].scheme.form, "%q: it sends to this node itself (%s, %s): tuples would go "+
						"round for ever or be refused; name the receiver's address", c.sinks[i].text, a.what, a.variable)
				}
			}
		}
	}
}

// clash tells whether two cannot listen at once.
func clash(a, b string) bool {
	hostA, portA, err1 := net.SplitHostPort(a)
	hostB, portB, err2 := net.SplitHostPort(b)
	if err1 != nil || err2 != nil || portA != portB || portA == "0" {
		return false
	}
	return everywhere(hostA) || everywhere(hostB) || sameHost(hostA, hostB)
}

// reaches tells whether who connects to addr from this machine gets to the listener at own.
func reaches(addr, own, hostname string) bool {
	host, port, err1 := net.SplitHostPort(addr)
	at, ownPort, err2 := net.SplitHostPort(own)
	if err1 != nil || err2 != nil || port != ownPort || port == "0" {
		return false
	}
	local := everywhere(host) || loopback(addr) || strings.EqualFold(host, hostname)
	return sameHost(host, at) || everywhere(at) && local
}

// everywhere tells whether a host means all addresses of the machine.
func everywhere(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func sameHost(a, b string) bool {
	return strings.EqualFold(canonical(a), canonical(b))
}

func canonical(host string) string {
	if host == "localhost" {
		return "127.0.0.1"
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.String()
	}
	return host
}

// cannotListen words an error to listen at an address of this node as a mistake of its variable; others stay as they
// are.
func (c *config) cannotListen(err error) error {
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "listen" {
		return err
	}
	at := prefix + "ADMIN_ADDR"
	if errors.Is(err, replica.ErrConfig) {
		at = map[bool]string{false: prefix + "PEERS", true: prefix + "LISTEN"}[c.Listen != ""]
	}
	var wrong mistakes
	wrong.add(at, "", "%v: does another process listen there, and is it an address of this machine?", op)
	return wrong
}
