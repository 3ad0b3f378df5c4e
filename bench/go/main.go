// Command gopeer runs the workloads of the benchmark on Go's scheduler, for the comparison with
// other runtimes.
//
// Usage: gopeer WORKLOAD N PROCS, driven through its standard input and output. It prints "ready".
// For each line "round" it does the work once, prints a line "METRIC VALUE UNIT" for each figure,
// and "done". A server prints "port P" instead and serves. It ends with its input. Errors go to
// standard error, with status 1. While it waits for a line it sleeps in a read.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"
)

// params is the size of the work of a round, and the number of Ps.
type params struct {
	n     int
	procs int
}

// sample is one figure of one round.
type sample struct {
	metric string
	value  float64
	unit   string
}

type round func() ([]sample, error)

// start prepares a workload.
type start func(params) (round, error)

// rounds are the workloads that are measured from inside, by name.
var rounds = map[string]start{
	"yield":          startYield,
	"spawn":          startSpawn,
	"spawn_burst":    startSpawnBurst,
	"go_burst":       startGoBurst,
	"submit_16":      startSubmit,
	"fib":            startFib,
	"pingpong_1w":    startPingpong1w,
	"pingpong_2w":    startPingpong,
	"chan_spsc":      startSpsc,
	"chan_mpmc":      startMpmc,
	"chan_unbounded": startUnbounded,
	"select_2":       startSelect2,
	"select_8":       startSelect8,
	"skynet":         startSkynet,
	"sieve":          startSieve,
	"mutex":          startMutex,
	"std_mutex":      startMutex,
	"std_mpsc":       startMpscTrips,
	"std_echo":       startEchoWithClients,
	"timers":         startTimers,
	"timers_10k":     startTimers,
	"timer_reset":    startReset,
	"idle_1m":        startIdle,
	"idle_100k":      startIdle,
	"foreign_wake":   startForeignWake,
	"stw":            startStw,
	"resize_chain":   startResizeChain,
	"hog":            startHog,
	"hog_relay":      startHogRelay,
	"hog_slept":      startHogSlept,
	"block":          startBlock,
	"block_marked":   startBlock,
	"idle_cpu":       startQuiet,
}

// servers are the workloads that a client measures from outside.
var servers = map[string]func() (port int, err error){
	"tcp_echo":     serveEcho,
	"tcp_idle":     serveEcho,
	"tcp_accept":   serveEcho,
	"accept_burst": serveEcho,
	"tcp_hogs":     serveBesideHogs,
	"http_hello":   serveHTTP,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "gopeer: %v\n", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 1 && arguments[0] == "--version" {
		fmt.Println(runtime.Version())
		return nil
	}
	if len(arguments) != 3 {
		return fmt.Errorf("usage: gopeer WORKLOAD N PROCS")
	}
	name := arguments[0]
	n, err := positive("N", arguments[1])
	if err != nil {
		return err
	}
	procs, err := positive("PROCS", arguments[2])
	if err != nil {
		return err
	}
	runtime.GOMAXPROCS(procs)
	input := bufio.NewScanner(os.Stdin)
	if serve, ok := servers[name]; ok {
		port, err := serve()
		if err != nil {
			return err
		}
		fmt.Printf("port %d\n", port)
		for input.Scan() {
		}
		return input.Err()
	}
	if start, ok := rounds[name]; ok {
		round, err := start(params{n, procs})
		if err != nil {
			return err
		}
		return play(round, input)
	}
	if name == "ureq_4000" {
		fmt.Println("unsupported ureq is a crate of Rust")
		return nil
	}
	fmt.Printf("unsupported there is no workload %s\n", name)
	return nil
}

// play does a round for each order.
func play(round round, input *bufio.Scanner) error {
	fmt.Println("ready")
	for input.Scan() {
		if line := input.Text(); line != "round" {
			return fmt.Errorf("it was told %q, which is nothing to do", line)
		}
		samples, err := round()
		if err != nil {
			return err
		}
		for _, sample := range samples {
			value := strconv.FormatFloat(sample.value, 'f', -1, 64)
			fmt.Println(sample.metric, value, sample.unit)
		}
		fmt.Println("done")
	}
	return input.Err()
}

func positive(what, given string) (int, error) {
	number, err := strconv.Atoi(given)
	if err != nil || number < 1 {
		return 0, fmt.Errorf("%s must be a whole number of at least 1, not %q", what, given)
	}
	return number, nil
}

// nsEach is the time since start, divided by the number of operations.
func nsEach(start time.Time, things int) float64 {
	return float64(time.Since(start).Nanoseconds()) / float64(things)
}
