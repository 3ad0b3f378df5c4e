package main

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// tick is how long the ticker sleeps.
	tick = time.Millisecond
	// disturbers is the number of goroutines that disturb it.
	disturbers = 4
	// ticksMin: a ticker with fewer ticks in a whole round was stalled; short rounds need fewer.
	ticksMin = 10
	// patience: a goroutine that has not ended this long after stop never will.
	patience = 10 * time.Second
	// napSpan is how long a disturber of block sleeps at a time.
	napSpan = 50 * time.Millisecond
)

func startHog(p params) (round, error) {
	return startDisturbed(p, disturbed{ticker: tickAlone, disturb: spin, isSharing: true})
}

func startHogRelay(p params) (round, error) {
	return startDisturbed(p, disturbed{ticker: tickToRelay, disturb: spin, isSharing: true})
}

func startHogSlept(p params) (round, error) {
	sleepAndSpin := func(stop *atomic.Bool) uint64 {
		time.Sleep(tick)
		return spin(stop)
	}
	return startDisturbed(p, disturbed{ticker: tickAlone, disturb: sleepAndSpin, isSharing: true})
}

// startBlock is block and block_marked: every call of the package syscall that may block notifies
// the scheduler.
func startBlock(p params) (round, error) {
	napAgain := func(stop *atomic.Bool) uint64 {
		naps := uint64(0)
		for ; !stop.Load(); naps++ {
			nap(napSpan)
		}
		return naps
	}
	return startDisturbed(p, disturbed{ticker: tickAlone, disturb: napAgain})
}

// disturbed is a ticker among disturbers of one kind.
type disturbed struct {
	// ticker ticks until stop is set and sends the lateness of all ticks, in ms.
	ticker func(stop *atomic.Bool, late chan<- []float64)
	// disturb returns how much work it did until stop.
	disturb func(stop *atomic.Bool) uint64
	// isSharing: the disturbers compete for CPU time, so that their shares count.
	isSharing bool
}

func startDisturbed(p params, d disturbed) (round, error) {
	return func() ([]sample, error) {
		span := time.Duration(p.n) * time.Millisecond
		stop := new(atomic.Bool)
		lates := make(chan []float64, 1)
		works := make(chan uint64, disturbers)
		go d.ticker(stop, lates)
		for range disturbers {
			go func() { works <- d.disturb(stop) }()
		}
		time.Sleep(span)
		stop.Store(true)
		deadline := time.After(patience)
		late, err := waitUntil(deadline, lates)
		if err != nil {
			return nil, err
		}
		work := make([]uint64, disturbers)
		for nth := range work {
			if work[nth], err = waitUntil(deadline, works); err != nil {
				return nil, err
			}
		}
		samples, err := lateness(late, span)
		if err != nil || !d.isSharing {
			return samples, err
		}
		share := float64(slices.Min(work)) / float64(max(slices.Max(work), 1))
		return append(samples, sample{"share", share, "x"}), nil
	}, nil
}

// waitUntil receives the result of a goroutine after stop was set.
func waitUntil[T any](deadline <-chan time.Time, from <-chan T) (T, error) {
	select {
	case value := <-from:
		return value, nil
	case <-deadline:
		var none T
		return none, fmt.Errorf("stuck: still running %v after stop was set", patience)
	}
}

// lateness returns the figures of a round's ticks.
func lateness(late []float64, span time.Duration) ([]sample, error) {
	ticks, possible := len(late), int(span/tick)
	if ticks < min(max(possible/100, 1), ticksMin) {
		return nil, fmt.Errorf("stalled: %d of %d ticks in %v", ticks, possible, span)
	}
	slices.Sort(late)
	return []sample{
		{"late_p50", quantile(late, 0.50), "ms"},
		{"late_p99", quantile(late, 0.99), "ms"},
		{"late_max", late[ticks-1], "ms"},
		{"ticks", float64(ticks), "count"},
	}, nil
}

// tickAlone measures the lateness of its ticks itself.
func tickAlone(stop *atomic.Bool, late chan<- []float64) {
	var all []float64
	tickUntil(stop, func(wanted time.Time) { all = append(all, millisSince(wanted)) })
	late <- all
}

// tickToRelay passes each tick to another goroutine, which measures the lateness. A tick is dropped
// if the last one was not taken yet.
func tickToRelay(stop *atomic.Bool, late chan<- []float64) {
	mailbox := make(chan time.Time, 1)
	go func() {
		var all []float64
		for wanted := range mailbox {
			all = append(all, millisSince(wanted))
		}
		late <- all
	}()
	tickUntil(stop, func(wanted time.Time) {
		select {
		case mailbox <- wanted:
		default:
		}
	})
	close(mailbox)
}

// tickUntil calls tell for every tick, with the moment at which it wanted to wake.
func tickUntil(stop *atomic.Bool, tell func(wanted time.Time)) {
	for !stop.Load() {
		wanted := time.Now().Add(tick)
		time.Sleep(tick)
		tell(wanted)
	}
}

func millisSince(wanted time.Time) float64 {
	return float64(time.Since(wanted).Nanoseconds()) / 1e6
}

// spin is the tight loop: it counts until stop, which it reads rarely, and calls nothing.
//
//go:noinline
func spin(stop *atomic.Bool) uint64 {
	count := uint64(0)
	for !stop.Load() {
		for range 1_000 {
			count++
		}
	}
	return count
}
