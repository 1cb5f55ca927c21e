//! Percentiles of the recent times to the response head.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Buckets per doubling of the latency: an estimate exceeds the latency by at most a fourth.
const BUCKETS_PER_OCTAVE: u32 = 4;

/// Buckets from 1 µs to more than an hour.
const BUCKETS: usize = 128;

/// Number of samples after which all counts are halved, so that recent samples prevail.
const DECAY_SAMPLES: u32 = 2_000;

/// Minimum samples of an estimate.
const MIN_SAMPLES: u32 = 20;

/// A histogram of latencies with logarithmic buckets, whose older samples decay.
#[derive(Debug)]
pub(super) struct LatencyPercentiles {
    counts: [AtomicU32; BUCKETS],
    samples: AtomicU32,
}

// === impl LatencyPercentiles ===

impl LatencyPercentiles {
    /// Adds a sample in microseconds.
    pub(super) fn record(&self, micros: u64) {
        self.counts[bucket(micros)].fetch_add(1, Ordering::Relaxed);
        if self.samples.fetch_add(1, Ordering::Relaxed) + 1 >= DECAY_SAMPLES {
            self.samples.store(DECAY_SAMPLES / 2, Ordering::Relaxed);
            for count in &self.counts {
                // Concurrent samples may get lost, which changes an estimate little.
                count.store(count.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
            }
        }
    }

    /// Returns the upper bound of the bucket that contains the percentile; `None` with too few
    /// samples.
    pub(super) fn percentile(&self, percent: u32) -> Option<Duration> {
        let counts = || {
            self.counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
        };
        let total: u32 = counts().sum();
        if total < MIN_SAMPLES {
            return None;
        }
        let rank = (u64::from(total) * u64::from(percent)).div_ceil(100);
        let mut seen = 0;
        let at = counts().position(|count| {
            seen += u64::from(count);
            seen >= rank
        })?;
        Some(Duration::from_micros(upper_bound(at)))
    }
}

impl Default for LatencyPercentiles {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; BUCKETS],
            samples: AtomicU32::new(0),
        }
    }
}

/// Returns the bucket of a latency: its octave, and the position within it.
fn bucket(micros: u64) -> usize {
    let micros = micros.max(u64::from(BUCKETS_PER_OCTAVE));
    let octave = micros.ilog2() - BUCKETS_PER_OCTAVE.ilog2();
    let within = u32::try_from(micros >> octave).unwrap_or(0) - BUCKETS_PER_OCTAVE;
    usize::try_from(octave * BUCKETS_PER_OCTAVE + within)
        .map_or(BUCKETS - 1, |at| at.min(BUCKETS - 1))
}

/// Returns the first latency after a bucket, in microseconds.
fn upper_bound(bucket: usize) -> u64 {
    let per_octave = BUCKETS_PER_OCTAVE as usize;
    let (octave, within) = (bucket / per_octave, bucket % per_octave);
    ((per_octave + within + 1) as u64) << octave
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_contains_its_latencies() {
        for micros in [4, 5, 7, 8, 9, 100, 1_000, 1_023, 1_024, 50_000, 3_000_000] {
            let bound = upper_bound(bucket(micros));
            assert!(
                bound > micros && bound <= micros + micros.div_ceil(4),
                "{micros}: {bound}"
            );
        }
        assert!(bucket(0) == 0 && bucket(u64::MAX) == BUCKETS - 1);
    }

    #[test]
    fn percentile_follows_recent_samples() {
        let latency = LatencyPercentiles::default();
        (0..19).for_each(|_| latency.record(1_000));
        assert_eq!(latency.percentile(95), None, "too few");
        (0..81).for_each(|_| latency.record(1_000));
        (0..4).for_each(|_| latency.record(90_000));
        let is_near = |percent, micros: u64| {
            let found = latency
                .percentile(percent)
                .expect("an estimate")
                .as_micros();
            (u128::from(micros)..=u128::from(micros) * 5 / 4).contains(&found)
        };
        assert!(is_near(50, 1_000) && is_near(95, 1_000) && is_near(99, 90_000));
        (0..20_000).for_each(|_| latency.record(20_000));
        assert!(is_near(50, 20_000) && is_near(99, 20_000));
    }
}
