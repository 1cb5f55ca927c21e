//! An injectable clock.
//!
//! Code that needs the current time takes a [`Clock`], so that tests control it. Instants are Unix
//! milliseconds, the representation that both stores use.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::log_limited;

/// The system clock, that of a server which several processes share, or a manual clock for tests.
#[derive(Clone, Debug, Default)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug, Default)]
enum ClockSource {
    #[default]
    System,
    Shared(Arc<Mutex<Reading>>),
    Manual(Arc<AtomicI64>),
}

/// All clocks at one instant. In between, the monotonic clock counts: the system clock can be set.
#[derive(Clone, Copy, Debug)]
struct Reading {
    shared: i64,
    system: i64,
    at: Instant,
}

/// Difference between the progress of the system clock and of the monotonic clock from which on the
/// machine was suspended, or its clock was set.
const MAX_DRIFT_MS: u64 = 1_000;
/// Maximum difference of the shared and the system clock while both are taken for right.
const MAX_SKEW_MS: i64 = 60_000;

/// An instant in Unix milliseconds, displayed as RFC 3339 in UTC with milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// For how long something is kept, or not repeated, in the memory of a process.
///
/// It ends early if the clock is set back by more than a minute before its beginning: a clock that was
/// ahead must not make a pause or a copy last until that time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    from: Timestamp,
    until: Timestamp,
}

// === impl Clock ===

impl Clock {
    /// Returns the system clock.
    #[must_use]
    pub fn system() -> Self {
        Self(ClockSource::System)
    }

    /// Returns a clock that is stopped at `start` and moves only by [`Clock::advance`].
    #[must_use]
    pub fn manual(start: Timestamp) -> Self {
        Self(ClockSource::Manual(Arc::new(AtomicI64::new(start.0))))
    }

    /// Returns a clock that follows the one of a server, by [`Clock::correct`]. A manual clock is
    /// returned as it is.
    #[must_use]
    pub fn shared(&self) -> Self {
        match &self.0 {
            ClockSource::System => {
                let reading = Mutex::new(Reading::new(system_millis()));
                Self(ClockSource::Shared(Arc::new(reading)))
            }
            ClockSource::Shared(_) | ClockSource::Manual(_) => self.clone(),
        }
    }

    /// Corrects a shared clock: at some instant since `began`, the time of the server was `server`.
    /// The clock changes by no more than that proves.
    pub fn correct(&self, server: Timestamp, began: Instant) {
        if let ClockSource::Shared(reading) = &self.0 {
            let mut reading = reading.lock();
            let latest = server.plus(began.elapsed());
            *reading = Reading::new(reading.now().clamp(server.0, latest.0));
        }
    }

    /// Returns by how many milliseconds the system clock is ahead of a shared one.
    #[must_use]
    pub fn skew_ms(&self) -> i64 {
        match &self.0 {
            ClockSource::Shared(reading) => system_millis() - reading.lock().now(),
            ClockSource::System | ClockSource::Manual(_) => 0,
        }
    }

    /// Returns whether a shared clock and the system clock agree. Otherwise one of both is wrong, and
    /// nothing may be deleted because of its age.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        let skew_ms = self.skew_ms();
        let agree = skew_ms.abs() <= MAX_SKEW_MS;
        if !agree {
            log_limited!(
                warn,
                ahead_s = skew_ms / 1000,
                "clocks of this machine and of the database differ, nothing is deleted"
            );
        }
        agree
    }

    /// Returns the earlier of the shared and the system clock, for what must not end too early.
    #[must_use]
    pub fn earliest(&self) -> Timestamp {
        Timestamp(self.now().0.saturating_add(self.skew_ms().min(0)))
    }

    /// Returns whether a shared clock must be corrected before it is used: the machine was suspended,
    /// or its clock was set.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        match &self.0 {
            ClockSource::Shared(reading) => reading.lock().drift_ms() > MAX_DRIFT_MS,
            ClockSource::System | ClockSource::Manual(_) => false,
        }
    }

    /// Returns the current instant.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::System => Timestamp(system_millis()),
            ClockSource::Shared(reading) => Timestamp(reading.lock().now()),
            ClockSource::Manual(millis) => Timestamp(millis.load(Ordering::SeqCst)),
        }
    }

    /// Returns the current instant with the precision of the system, for spans.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock itself reads the system clock"
    )]
    pub fn system_time(&self) -> SystemTime {
        match &self.0 {
            ClockSource::System | ClockSource::Shared(_) => SystemTime::now(),
            ClockSource::Manual(millis) => {
                let millis = u64::try_from(millis.load(Ordering::SeqCst)).unwrap_or(0);
                UNIX_EPOCH + Duration::from_millis(millis)
            }
        }
    }

    /// Sets a manual clock. Has no effect on the system clock.
    pub fn set(&self, to: Timestamp) {
        if let ClockSource::Manual(millis) = &self.0 {
            millis.store(to.0, Ordering::SeqCst);
        }
    }

    /// Moves a manual clock forward. Has no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        if let ClockSource::Manual(millis) = &self.0 {
            millis.fetch_add(saturating_millis(by), Ordering::SeqCst);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the clock itself reads the system clock"
)]
fn system_millis() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => saturating_millis(since),
        Err(before) => -saturating_millis(before.duration()),
    }
}

fn saturating_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

// === impl Reading ===

impl Reading {
    fn new(shared: i64) -> Self {
        Self {
            shared,
            system: system_millis(),
            at: Instant::now(),
        }
    }

    fn now(&self) -> i64 {
        let since = saturating_millis(self.at.elapsed());
        self.shared.saturating_add(since)
    }

    fn drift_ms(&self) -> u64 {
        (system_millis() - self.system).abs_diff(saturating_millis(self.at.elapsed()))
    }
}

// === impl Period ===

impl Period {
    /// Returns the period from an instant of this clock on.
    #[must_use]
    pub fn new(from: Timestamp, duration: Duration) -> Self {
        Self {
            from,
            until: from.plus(duration),
        }
    }

    /// Returns whether it has begun and not ended.
    #[must_use]
    pub fn contains(self, now: Timestamp) -> bool {
        now < self.until && !now.is_set_back(self.from)
    }

    /// Returns the end, unless the clock is set.
    #[must_use]
    pub fn until(self) -> Timestamp {
        self.until
    }
}

// === impl Timestamp ===

impl Timestamp {
    /// Returns whether the clock was set back since it showed `earlier`, by more than threads and
    /// corrections differ.
    #[must_use]
    pub fn is_set_back(self, earlier: Self) -> bool {
        earlier.0.saturating_sub(self.0) > MAX_SKEW_MS
    }

    /// Returns Unix seconds, rounded down: the unit of `exp`, `iat` and `nbf` (RFC 7519 section 2,
    /// NumericDate).
    #[must_use]
    pub fn unix_seconds(self) -> i64 {
        self.0.div_euclid(1000)
    }

    /// Converts Unix seconds, saturating.
    #[must_use]
    pub fn from_unix_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Returns the instant `duration` later, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(saturating_millis(duration)))
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses RFC 3339 with any offset. Returns `None` for other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let millis = at.unix_timestamp_nanos().div_euclid(1_000_000);
        i64::try_from(millis).ok().map(Self)
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = OffsetDateTime::from_unix_timestamp(self.unix_seconds()).ok();
        // RFC 3339 has years of four digits.
        let Some((year, at)) = at.and_then(|at| Some((u32::try_from(at.year()).ok()?, at))) else {
            return f.write_str("out of range");
        };
        let mut text = *b"0000-00-00T00:00:00.000Z";
        write_digits(&mut text[0..4], year);
        write_digits(&mut text[5..7], u8::from(at.month()).into());
        write_digits(&mut text[8..10], at.day().into());
        write_digits(&mut text[11..13], at.hour().into());
        write_digits(&mut text[14..16], at.minute().into());
        write_digits(&mut text[17..19], at.second().into());
        write_digits(
            &mut text[20..23],
            u32::try_from(self.0.rem_euclid(1000)).unwrap_or(0),
        );
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// Writes a number with leading zeros. `time`'s formatter allocates for each component, and most
/// responses contain several instants.
fn write_digits(text: &mut [u8], mut number: u32) {
    for digit in text.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
}

impl serde::Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_displays_rfc_3339_with_milliseconds() {
        let at = Timestamp::parse("2026-11-20T09:30:00+02:00").expect("valid");
        assert_eq!(at.to_string(), "2026-11-20T07:30:00.000Z");
        assert_eq!(Timestamp::parse("2026-11-20"), None);
        for text in [
            "0000-01-01T00:00:00.000Z",
            "1969-12-31T23:59:59.999Z",
            "2024-02-29T12:34:56.789Z",
        ] {
            assert_eq!(Timestamp::parse(text).expect("valid").to_string(), text);
        }
        assert_eq!(Timestamp(i64::MAX).to_string(), "out of range");
        assert_eq!(Timestamp(-62_167_219_200_001).to_string(), "out of range");
    }

    #[test]
    fn shared_clock_follows_the_server_within_what_a_reading_proves() {
        let (clock, began) = (Clock::system().shared(), Instant::now());
        let system = Clock::system().now();
        clock.correct(system, began);
        assert!(clock.is_confirmed() && !clock.is_uncertain());
        for hours in [-5, 3] {
            let server = Timestamp(system.0 + hours * 3_600_000);
            clock.correct(server, Instant::now());
            assert!(clock.now() >= server && clock.now().since(server).as_secs() < 60);
            assert!((clock.skew_ms() + hours * 3_600_000).abs() < 60_000);
            assert!(!clock.is_confirmed(), "nobody knows which clock is wrong");
            let earliest = Clock::system().now().min(clock.now());
            assert!(earliest.0.abs_diff(clock.earliest().0) < 1_000);
        }
        let before = clock.now();
        let long_ago = began.checked_sub(Duration::from_secs(10));
        let long_ago = long_ago.expect("the machine has been up for longer");
        clock.correct(Timestamp(before.0 - 5_000), long_ago);
        assert!(clock.now() >= before, "a slow reading proves nothing");
        if let ClockSource::Shared(reading) = &clock.0 {
            reading.lock().system -= 2_000;
        }
        assert!(clock.is_uncertain(), "the machine has slept");
        clock.correct(clock.now(), Instant::now());
        assert!(!clock.is_uncertain());
    }

    #[test]
    fn period_ends_when_its_time_has_passed_or_the_clock_is_set_back() {
        let period = Period::new(Timestamp(8_640_000_000), Duration::from_secs(60));
        for (now, contains) in [
            (8_640_000_000, true),
            (8_640_059_999, true),
            (8_640_060_000, false),
            (8_639_940_000, true),
            (8_639_939_999, false),
            (0, false),
        ] {
            assert_eq!(period.contains(Timestamp(now)), contains, "{now}");
        }
    }
}
