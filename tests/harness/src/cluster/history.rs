//! The history of a run: what clients and the notification provider observed.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Status of a request without a complete response.
pub const NO_RESPONSE: u16 = 0;

/// An observation with its time, in milliseconds since the beginning of the run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    /// When the request was sent, the notification was received or the fault began.
    pub start_ms: u64,
    /// When the response was complete or the fault was healed.
    pub end_ms: u64,
    /// What was observed.
    #[serde(flatten)]
    pub event: Event,
}

/// An observation.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A notification was submitted. Requests with the same key have the same body.
    Submit {
        /// The idempotency key.
        key: String,
        /// The priority.
        priority: String,
        /// The id in the response.
        id: Option<String>,
        /// Status of the response, [`NO_RESPONSE`] without one.
        status: u16,
    },
    /// The provider received a notification.
    Deliver {
        /// Id of the notification.
        id: String,
    },
    /// The last status of an accepted notification.
    FinalStatus {
        /// Id of the notification.
        id: String,
        /// The status, such as `SENT`.
        state: String,
    },
    /// A temporary token was exchanged.
    Exchange {
        /// Digest of the token.
        token: String,
        /// Status of the response.
        status: u16,
    },
    /// A refresh token was exchanged.
    Refresh {
        /// Number of the sign-in.
        sign_in: u64,
        /// Digest of the token that was sent.
        token: String,
        /// Status of the response.
        status: u16,
    },
    /// A request whose response belongs to one person or object.
    Read {
        /// The request, such as `GET /auth/me`.
        request: String,
        /// Id that the response must have.
        expected: String,
        /// Id in the response.
        answered: Option<String>,
        /// Status of the response.
        status: u16,
    },
    /// A fault.
    Fault {
        /// Its description.
        fault: String,
        /// What it affects.
        affects: Affected,
    },
    /// A process of Postern that was asked to stop ended with this status.
    Exit {
        /// Name of the process.
        process: String,
        /// Exit status; `None` if it was killed by a signal.
        status: Option<i32>,
    },
    /// The end of the requests; only the state is read from here on.
    Quiet,
}

/// What a fault affects.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Affected {
    /// A gateway.
    Gateway,
    /// A replica of the authentication service.
    Auth,
    /// A replica of the notification service.
    Notify,
    /// PostgreSQL.
    Database,
    /// Redis.
    Cache,
}

/// A history that is being written.
#[derive(Debug)]
pub struct History {
    began: Instant,
    records: Mutex<(BufWriter<std::fs::File>, u64)>,
}

impl History {
    /// Creates a file.
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let file = BufWriter::new(std::fs::File::create(path)?);
        Ok(Self {
            began: Instant::now(),
            records: Mutex::new((file, 0)),
        })
    }

    /// Returns the milliseconds since the beginning.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Records an event that began at `start_ms` and ends now.
    pub fn record(&self, start_ms: u64, event: Event) {
        let record = Record {
            start_ms,
            end_ms: self.now_ms(),
            event,
        };
        let line = serde_json::to_string(&record).expect("a record is JSON");
        let mut records = self.records.lock();
        writeln!(records.0, "{line}").expect("the history can be written");
        records.1 += 1;
    }

    /// Writes buffered records and returns their number.
    pub fn flush(&self) -> u64 {
        let mut records = self.records.lock();
        records.0.flush().expect("the history can be written");
        records.1
    }
}

/// Reads a history.
pub fn read(path: &Path) -> std::io::Result<Vec<Record>> {
    let lines = BufReader::new(std::fs::File::open(path)?).lines();
    lines
        .map(|line| serde_json::from_str(&line?).map_err(std::io::Error::from))
        .collect()
}

/// Returns the digest by which a history names a token.
pub fn digest(token: &str) -> String {
    hex::encode(&Sha256::digest(token.as_bytes())[..12])
}
