package main

import (
	"slices"
	"time"
)

const (
	pingLen = 64 // octets
	warmUp  = 300 * time.Millisecond
)

// result is what one process measured in one round.
type result struct {
	Gbps  float64 `json:"gbps,omitempty"`   // goodput
	NsKiB float64 `json:"ns_kib,omitempty"` // CPU of this process per KiB
	P50   float64 `json:"p50_us,omitempty"` // round trip
	P99   float64 `json:"p99_us,omitempty"` // round trip
	Min   float64 `json:"min_us,omitempty"` // round trip
	Pings int     `json:"pings,omitempty"`  // round trips
	Total uint64  `json:"octets,omitempty"` // moved, warm-up included
	CPU   int64   `json:"cpu_ns,omitempty"` // of the whole process
}

// meter measures from startMeter on.
type meter struct {
	at  time.Time
	cpu time.Duration
}

func startMeter() meter { return meter{time.Now(), cpuTime()} }

// bulk is the result of n octets moved since, of total in all.
func (m meter) bulk(n, total uint64) result {
	d, cpu := time.Since(m.at), cpuTime()-m.cpu
	return result{
		Gbps:  float64(n) * 8 / float64(d.Nanoseconds()),
		NsKiB: float64(cpu.Nanoseconds()) / (float64(n) / 1024),
		Total: total,
	}
}

// pings calls ping until d has passed, after a warm-up.
func pings(d time.Duration, ping func() error) (result, error) {
	for end := time.Now().Add(warmUp); time.Now().Before(end); {
		if err := ping(); err != nil {
			return result{}, err
		}
	}
	took := make([]time.Duration, 0, 1<<18)
	end := time.Now().Add(d)
	for at := time.Now(); at.Before(end) && len(took) < cap(took); {
		if err := ping(); err != nil {
			return result{}, err
		}
		now := time.Now()
		took = append(took, now.Sub(at))
		at = now
	}
	slices.Sort(took)
	us := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))]) / 1e3 }
	return result{P50: us(0.5), P99: us(0.99), Min: us(0), Pings: len(took)}, nil
}

// filled returns n octets that are not all alike.
func filled(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 131 >> 3)
	}
	return b
}

// median, and the least and greatest, of v.
func median(v []float64) (mid, least, most float64) {
	if len(v) == 0 {
		return 0, 0, 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]
}
