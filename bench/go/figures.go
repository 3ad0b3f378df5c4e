package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// median sorts the values and returns the middle one; of an even number, the upper.
func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// quantile is the smallest of the sorted values that at least this share of them does not exceed.
func quantile(sorted []float64, part float64) float64 {
	rank := int(math.Ceil(part * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// ownMemory is the memory of this process in bytes: resident pages and page tables.
func ownMemory() (float64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	var kib int
	found := 0
	for _, line := range strings.Split(string(status), "\n") {
		label, rest, _ := strings.Cut(line, ":")
		if label != "VmRSS" && label != "VmPTE" {
			continue
		}
		number, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		if err != nil {
			return 0, fmt.Errorf("/proc has %q for a number", rest)
		}
		kib += number
		found++
	}
	if found != 2 {
		return 0, errors.New("/proc has no VmRSS and VmPTE")
	}
	return float64(kib) * 1024, nil
}

// ownCPU is the CPU time of all threads of this process so far.
func ownCPU() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
