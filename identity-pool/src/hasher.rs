//! argon2id on a bounded pool of threads with a bounded queue.
//!
//! Each thread keeps the memory for one hash, so that the pool needs `threads` times the memory
//! cost at most, whatever clients send. What does not fit in the queue is refused before anything
//! is hashed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use postern_common::Secret;
use prometheus::IntCounter;
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;

use crate::fault::{Fault, Kind};

/// What a hash costs and how many are made at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashing {
    /// KiB of memory for one hash. Default 64 MiB.
    pub memory_kib: u32,
    /// Passes over the memory. Default 3.
    pub passes: u32,
    /// Hashes at once, each with its own memory. Default one for each core,
    /// at most 4.
    pub threads: usize,
    /// Requests that wait for a thread; more are refused with `TooManyRequestsException`. Default
    /// 32: the last in line of two threads waits for some two seconds, less than clients do.
    pub queue: usize,
}

impl Default for Hashing {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            memory_kib: 64 << 10,
            passes: 3,
            threads: cores.min(4),
            queue: 32,
        }
    }
}

/// After this long without work a thread gives its memory back.
const IDLE: Duration = Duration::from_secs(5);

/// The cost of a hash whose password is 256 random bits: guessing is hopeless at any cost, and the
/// first sign-in replaces the hash by one at full cost.
const RANDOM_PASSWORD_COST: (u32, u32) = (1 << 10, 1);

/// A handle on the threads.
#[derive(Clone, Debug)]
pub(crate) struct Hasher {
    queue: SyncSender<Job>,
    params: Params,
    /// Stands in for the hash of a user that does not exist.
    dummy: Arc<str>,
    /// Passwords that were hashed, for whomever.
    hashes: IntCounter,
}

/// What a password was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Wrong,
    Right,
}

/// The outcome of a comparison.
#[derive(Debug)]
pub(crate) struct Verified {
    pub(crate) answer: Answer,
    /// The same password at today's cost, where the kept hash had another.
    pub(crate) rehashed: Option<String>,
}

#[derive(Debug)]
struct Job {
    password: Secret,
    work: Work,
    done: oneshot::Sender<Result<Verified, argon2::password_hash::Error>>,
}

#[derive(Debug)]
enum Work {
    Hash,
    Verify(Arc<str>),
}

// === impl Hasher ===

impl Hasher {
    /// Starts the threads; they end when the last handle is dropped.
    pub(crate) fn start(hashing: Hashing) -> Result<Self, Fault> {
        let params = params(hashing.memory_kib, hashing.passes)?;
        let (queue, jobs) = sync_channel(hashing.queue.max(1));
        let jobs = Arc::new(Mutex::new(jobs));
        let hashes = IntCounter::new("postern_identity_pool_hashes_total", "Passwords hashed.")
            .map_err(|error| Fault::internal(&error))?;
        for number in 0..hashing.threads.max(1) {
            let (jobs, params, hashes) = (Arc::clone(&jobs), params.clone(), hashes.clone());
            std::thread::Builder::new()
                .name(format!("argon2-{number}"))
                .spawn(move || work(&jobs, &params, &hashes))
                .map_err(|error| Fault::internal(&error))?;
        }
        let dummy = dummy(&params)
            .map_err(|error| Fault::internal(&error))?
            .into();
        Ok(Self {
            queue,
            params,
            dummy,
            hashes,
        })
    }

    /// How many passwords were hashed.
    pub(crate) fn hashes(&self) -> &IntCounter {
        &self.hashes
    }

    /// A new hash as a PHC string.
    pub(crate) async fn hash(&self, password: &Secret) -> Result<String, Fault> {
        let verified = self.run(password, Work::Hash).await?;
        verified
            .rehashed
            .ok_or_else(|| Fault::internal("the hasher made no hash"))
    }

    /// Compares. Without a kept hash the same work is done for nothing, and the answer is `Wrong`.
    pub(crate) async fn verify(
        &self,
        password: &Secret,
        kept: Option<&str>,
    ) -> Result<Verified, Fault> {
        match kept {
            Some(kept) => self.run(password, Work::Verify(kept.into())).await,
            None => {
                self.run(password, Work::Verify(Arc::clone(&self.dummy)))
                    .await?;
                Ok(Verified {
                    answer: Answer::Wrong,
                    rehashed: None,
                })
            }
        }
    }

    async fn run(&self, password: &Secret, work: Work) -> Result<Verified, Fault> {
        let (done, outcome) = oneshot::channel();
        let job = Job {
            password: password.clone(),
            work,
            done,
        };
        if self.queue.try_send(job).is_err() {
            return Err(Fault::new(Kind::TooManyRequests, "Too many requests"));
        }
        let outcome = outcome.await.map_err(|error| Fault::internal(&error))?;
        outcome.map_err(|error| Fault::internal(&error))
    }

    /// Hashes a password of 256 random bits, cheaply and on this thread.
    pub(crate) fn hash_random(&self, password: &Secret) -> Result<String, Fault> {
        let (memory_kib, passes) = RANDOM_PASSWORD_COST;
        let cheap = params(memory_kib.min(self.params.m_cost()), passes)?;
        hash(password, &cheap, &mut Vec::new()).map_err(|error| Fault::internal(&error))
    }
}

fn params(memory_kib: u32, passes: u32) -> Result<Params, Fault> {
    Params::new(memory_kib, passes, 1, None).map_err(|error| Fault::internal(&error))
}

fn work(jobs: &Mutex<Receiver<Job>>, params: &Params, hashes: &IntCounter) {
    let mut memory = Vec::new();
    loop {
        // Whoever holds the lock waits for the next job; the others wait for the lock.
        let next = jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv_timeout(IDLE);
        match next {
            Ok(job) => serve(job, params, &mut memory, hashes),
            Err(RecvTimeoutError::Timeout) => memory = Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn serve(job: Job, params: &Params, memory: &mut Vec<Block>, hashes: &IntCounter) {
    let Job {
        password,
        work,
        done,
    } = job;
    // Whoever asked has gone: nobody would hear the answer.
    if done.is_closed() {
        return;
    }
    hashes.inc();
    let outcome = match work {
        Work::Hash => hash(&password, params, memory).map(|hash| Verified {
            answer: Answer::Right,
            rehashed: Some(hash),
        }),
        Work::Verify(kept) => verify(&password, &kept, params, memory),
    };
    // The receiver may have gone meanwhile; the outcome is lost with it.
    let _ = done.send(outcome);
}

fn hash(
    password: &Secret,
    params: &Params,
    memory: &mut Vec<Block>,
) -> Result<String, argon2::password_hash::Error> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| argon2::password_hash::Error::Crypto)?;
    let mut out = [0; Params::DEFAULT_OUTPUT_LEN];
    derive(
        password,
        &salt,
        &mut out,
        (Algorithm::Argon2id, Version::V0x13, params),
        memory,
    )?;
    phc(params, &salt, &out)
}

fn verify(
    password: &Secret,
    kept: &str,
    params: &Params,
    memory: &mut Vec<Block>,
) -> Result<Verified, argon2::password_hash::Error> {
    let kept = PasswordHash::new(kept)?;
    let (Some(salt), Some(expected)) = (&kept.salt, &kept.hash) else {
        return Err(argon2::password_hash::Error::PasswordInvalid);
    };
    let algorithm = Algorithm::try_from(kept.algorithm.as_str())?;
    let version = kept
        .version
        .map(Version::try_from)
        .transpose()?
        .unwrap_or_default();
    let kept_params = Params::try_from(&kept)?;
    let mut out = vec![0; expected.len()];
    derive(
        password,
        salt,
        &mut out,
        (algorithm, version, &kept_params),
        memory,
    )?;
    if !bool::from(out.ct_eq(expected.as_bytes())) {
        return Ok(Verified {
            answer: Answer::Wrong,
            rehashed: None,
        });
    }
    let today = (
        kept_params.m_cost(),
        kept_params.t_cost(),
        kept_params.p_cost(),
    ) == (params.m_cost(), params.t_cost(), params.p_cost())
        && algorithm == Algorithm::Argon2id;
    let rehashed = if today {
        None
    } else {
        Some(hash(password, params, memory)?)
    };
    Ok(Verified {
        answer: Answer::Right,
        rehashed,
    })
}

fn derive(
    password: &Secret,
    salt: &[u8],
    out: &mut [u8],
    (algorithm, version, params): (Algorithm, Version, &Params),
    memory: &mut Vec<Block>,
) -> Result<(), argon2::password_hash::Error> {
    if memory.len() < params.block_count() {
        *memory = vec![Block::default(); params.block_count()];
    }
    Argon2::new(algorithm, version, params.clone())
        .hash_password_into_with_memory(password.expose().as_bytes(), salt, out, &mut memory[..])
        .map_err(Into::into)
}

fn phc(params: &Params, salt: &[u8], out: &[u8]) -> Result<String, argon2::password_hash::Error> {
    let hash = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(params)?,
        salt: Some(Salt::new(salt)?),
        hash: Some(Output::new(out)?),
    };
    Ok(hash.to_string())
}

/// A hash that no password has, with the parameters of real ones.
fn dummy(params: &Params) -> Result<String, argon2::password_hash::Error> {
    let mut random = [0; 48];
    getrandom::fill(&mut random).map_err(|_| argon2::password_hash::Error::Crypto)?;
    phc(params, &random[..16], &random[16..])
}

#[cfg(test)]
mod tests;
