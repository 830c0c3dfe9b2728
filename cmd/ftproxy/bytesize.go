package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes, written as a number with or without a unit: 1048576, 64KiB, 4GiB, 10MB.
type byteSize int64

type byteUnit struct {
	name  string
	bytes int64
}

// byteUnits are the units in the order in which they are tried: B ends all others.
func byteUnits() []byteUnit {
	return append(binaryUnits(), byteUnit{"kB", 1e3}, byteUnit{"KB", 1e3}, byteUnit{"MB", 1e6}, byteUnit{"GB", 1e9},
		byteUnit{"TB", 1e12}, byteUnit{"B", 1}, byteUnit{"", 1})
}

func binaryUnits() []byteUnit {
	return []byteUnit{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
}

// UnmarshalText reads a size.
func (b *byteSize) UnmarshalText(text []byte) error {
	for _, unit := range byteUnits() {
		digits, ok := strings.CutSuffix(string(text), unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/unit.bytes {
			break
		}
		*b = byteSize(n * unit.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size in bytes, such as 1048576, 64KiB or 4GiB", text)
}

// String writes the size in the largest binary unit that divides it.
func (b byteSize) String() string {
	for _, u := range binaryUnits() {
		if b > 0 && int64(b)%u.bytes == 0 {
			return strconv.FormatInt(int64(b)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
