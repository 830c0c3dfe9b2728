package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"os"
)

const (
	maxSecretBytes = 64 << 10
	maxPEMBytes    = 4 << 20 // a system's bundle of authorities has a quarter of a megabyte
)

// readFile reads a file that holds at most so many bytes; some, such as devices, never end.
func readFile(path string, most byteSize) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	content, err := io.ReadAll(io.LimitReader(file, int64(most)+1))
	if err != nil {
		return nil, err
	}
	if byteSize(len(content)) > most {
		return nil, fmt.Errorf("the file %s holds more than %v: name the file that holds this alone", path, most)
	}
	return content, nil
}

// validatePEM loads a certificate with its key, and the authorities, from files that are set. Variables are called
// stem+CERT_FILE and so on.
func validatePEM(stem, cert, key, authority string, wrong *mistakes) {
	read := func(variable, path string) (content []byte, ok bool) {
		if path == "" {
			return nil, false
		}
		content, err := readFile(path, maxPEMBytes)
		if err != nil {
			wrong.add(stem+variable, "", "%v", err)
		}
		return content, err == nil
	}
	certPEM, ok := read("CERT_FILE", cert)
	keyPEM, ok2 := read("KEY_FILE", key)
	if ok && ok2 {
		if _, err := tls.X509KeyPair(certPEM, keyPEM); err != nil {
			wrong.add(stem+"CERT_FILE", "", "%s and %s (%sKEY_FILE) are no certificate with its key: %v; both are PEM, and the "+
				"key is the certificate's", cert, key, stem, err)
		}
	}
	if _, ok := read("CA_FILE", authority); ok {
		if _, err := authorities(authority); err != nil {
			wrong.add(stem+"CA_FILE", "", "%v: name the file with the certificates of who signs", err)
		}
	}
}
