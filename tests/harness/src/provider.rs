//! A provider of text messages that records every call.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::origin::{Origin, Seen};

/// A call received by the provider.
#[derive(Clone, Debug)]
pub struct Call {
    /// The `Idempotency-Key`, which is the notification's id.
    pub id: String,
    /// When it was received.
    pub at: Instant,
}

/// A provider of text messages over HTTP.
#[derive(Clone, Debug)]
pub struct Provider(Origin);

impl Provider {
    /// Starts it. It accepts every message.
    pub async fn start() -> Self {
        Self(Origin::answering(&[("", 202, json!({}))]).await)
    }

    /// Returns its base URL.
    pub fn url(&self) -> String {
        self.0.url()
    }

    /// Records further calls without responding until [`Provider::resume_responses`].
    pub fn pause_responses(&self) {
        self.0.pause();
    }

    /// Sends the delayed responses, and those to further calls at once.
    pub fn resume_responses(&self) {
        self.0.resume();
    }

    /// Responds to further calls with this status, or with 202 for `None`.
    pub fn respond_with(&self, status: Option<u16>) {
        let status = status.unwrap_or(202);
        self.0.set_answers(&[("", status, json!({}))]);
    }

    /// Returns the recorded calls.
    pub fn calls(&self) -> Vec<Call> {
        calls(&self.0.seen())
    }

    /// Returns the recorded calls once they satisfy a condition.
    pub async fn until(&self, timeout: Duration, holds: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        calls(&self.0.until(timeout, |seen| holds(&calls(seen))).await)
    }
}

fn calls(seen: &[Seen]) -> Vec<Call> {
    let call = |seen: &Seen| Call {
        id: seen.all("idempotency-key").concat(),
        at: seen.at,
    };
    seen.iter().map(call).collect()
}
