//! `[upstream.NAME.hedge]`: second attempts of slow requests.

use std::time::Duration;

use postern_common::decode::{Field, Object};

use crate::config::nonzero_duration;

/// A second attempt, at another address, of a request that is not answered in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HedgeConfig {
    /// Time after which the second attempt starts.
    pub after: HedgeDelay,
    /// Second attempts in percent of requests; default 5.
    pub budget: u32,
}

/// The time after which a request is hedged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HedgeDelay {
    /// A fixed time.
    Fixed(Duration),
    /// This percentile of the recent times to the response head, 50 to 99.
    Percentile(u32),
}

impl HedgeConfig {
    pub(super) fn read(section: &Object<'_>) -> Option<Self> {
        let budget = section.or("budget", 5, |field| field.integer(1..=100));
        let after = section.required("after", HedgeDelay::read);
        Some(Self {
            after: after?,
            budget,
        })
    }
}

impl HedgeDelay {
    const PERCENTILES: [(&str, u32); 5] = [
        ("p50", 50),
        ("p75", 75),
        ("p90", 90),
        ("p95", 95),
        ("p99", 99),
    ];

    fn read(field: Field<'_>) -> Option<Self> {
        for (word, percent) in Self::PERCENTILES {
            if field.is(word) {
                return Some(Self::Percentile(percent));
            }
        }
        nonzero_duration(field).map(Self::Fixed)
    }
}
