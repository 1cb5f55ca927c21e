//! Password hashing with argon2id, on a bounded number of threads with a bounded queue.
//!
//! Each thread keeps the memory of one hash, so that hashing uses at most `threads` times the
//! memory cost. Requests beyond the queue's capacity are rejected before any hashing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use parking_lot::Mutex;
use postern_common::Secret;
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;

use crate::pool::error::{ApiError, ExceptionKind};

/// The cost and concurrency of password hashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashingSettings {
    /// Memory of one hash in KiB. Default 64 MiB.
    pub memory_kib: u32,
    /// Passes over the memory. Default 3.
    pub passes: u32,
    /// Number of threads, each with its own memory. Default: one per core, at most 4.
    pub threads: usize,
    /// Number of requests that wait for a thread. Further ones are rejected with
    /// `TooManyRequestsException`. Default 32: with two threads, the last one waits for about two
    /// seconds, which is less than client timeouts.
    pub queue: usize,
}

impl Default for HashingSettings {
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

/// Idle time after which a thread frees its memory.
const IDLE_MEMORY_TIMEOUT: Duration = Duration::from_secs(5);

/// Cost of a hash of a password of 256 random bits. Such a password cannot be guessed at any cost,
/// and the first sign-in replaces the hash by one at full cost.
const RANDOM_PASSWORD_COST: (u32, u32) = (1 << 10, 1);

/// A cloneable handle to the hashing threads.
#[derive(Clone, Debug)]
pub(crate) struct PasswordHasher {
    queue: SyncSender<HashJob>,
    params: Params,
    /// Hash that is verified against if the user does not exist.
    dummy_hash: Arc<str>,
    /// Number of passwords hashed, for hashing and for verification.
    hash_counter: Arc<AtomicU64>,
}

/// The result of a password comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PasswordMatch {
    Mismatch,
    Match,
}

/// The outcome of a verification.
#[derive(Debug)]
pub(crate) struct VerifyOutcome {
    pub(crate) outcome: PasswordMatch,
    /// A hash of the same password at the current cost, if the stored hash has another cost.
    pub(crate) rehashed: Option<String>,
}

#[derive(Debug)]
struct HashJob {
    password: Secret,
    work: HashWork,
    done: oneshot::Sender<Result<VerifyOutcome, argon2::password_hash::Error>>,
}

#[derive(Debug)]
enum HashWork {
    Hash,
    Verify(Arc<str>),
}

// === impl PasswordHasher ===

impl PasswordHasher {
    /// Starts the threads. They end when the last handle is dropped.
    pub(crate) fn start(hashing: HashingSettings) -> Result<Self, ApiError> {
        let params = params(hashing.memory_kib, hashing.passes)?;
        let (queue, jobs) = sync_channel(hashing.queue.max(1));
        let jobs = Arc::new(Mutex::new(jobs));
        let hash_counter = Arc::<AtomicU64>::default();
        for number in 0..hashing.threads.max(1) {
            let (jobs, params, hash_counter) =
                (Arc::clone(&jobs), params.clone(), hash_counter.clone());
            std::thread::Builder::new()
                .name(format!("argon2-{number}"))
                .spawn(move || run_worker(&jobs, &params, &hash_counter))
                .map_err(|error| ApiError::internal(&error))?;
        }
        let dummy_hash = dummy_hash(&params)
            .map_err(|error| ApiError::internal(&error))?
            .into();
        Ok(Self {
            queue,
            params,
            dummy_hash,
            hash_counter,
        })
    }

    /// Returns the counter of hashed passwords.
    pub(crate) fn hash_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.hash_counter)
    }

    /// Hashes a password. Returns a PHC string.
    pub(crate) async fn hash(&self, password: &Secret) -> Result<String, ApiError> {
        let verified = self.run(password, HashWork::Hash).await?;
        verified
            .rehashed
            .ok_or_else(|| ApiError::internal("the hasher made no hash"))
    }

    /// Verifies a password against a stored hash. Without one, takes the same time and returns a
    /// mismatch.
    pub(crate) async fn verify(
        &self,
        password: &Secret,
        stored: Option<&str>,
    ) -> Result<VerifyOutcome, ApiError> {
        match stored {
            Some(stored) => self.run(password, HashWork::Verify(stored.into())).await,
            None => {
                self.run(password, HashWork::Verify(Arc::clone(&self.dummy_hash)))
                    .await?;
                Ok(VerifyOutcome {
                    outcome: PasswordMatch::Mismatch,
                    rehashed: None,
                })
            }
        }
    }

    async fn run(&self, password: &Secret, work: HashWork) -> Result<VerifyOutcome, ApiError> {
        let (done, outcome) = oneshot::channel();
        let job = HashJob {
            password: password.clone(),
            work,
            done,
        };
        if self.queue.try_send(job).is_err() {
            return Err(ApiError::new(
                ExceptionKind::TooManyRequests,
                "Too many requests",
            ));
        }
        let outcome = outcome.await.map_err(|error| ApiError::internal(&error))?;
        outcome.map_err(|error| ApiError::internal(&error))
    }

    /// Hashes a password of 256 random bits at low cost, on the calling thread.
    pub(crate) fn hash_random(&self, password: &Secret) -> Result<String, ApiError> {
        let (memory_kib, passes) = RANDOM_PASSWORD_COST;
        let cheap = params(memory_kib.min(self.params.m_cost()), passes)?;
        hash(password, &cheap, &mut Vec::new()).map_err(|error| ApiError::internal(&error))
    }
}

fn params(memory_kib: u32, passes: u32) -> Result<Params, ApiError> {
    Params::new(memory_kib, passes, 1, None).map_err(|error| ApiError::internal(&error))
}

fn run_worker(jobs: &Mutex<Receiver<HashJob>>, params: &Params, hash_counter: &AtomicU64) {
    let mut memory = Vec::new();
    loop {
        // One thread holds the lock and waits for a job; the other threads wait for the lock.
        let next = jobs.lock().recv_timeout(IDLE_MEMORY_TIMEOUT);
        match next {
            Ok(job) => run_job(job, params, &mut memory, hash_counter),
            Err(RecvTimeoutError::Timeout) => memory = Vec::new(),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn run_job(job: HashJob, params: &Params, memory: &mut Vec<Block>, hash_counter: &AtomicU64) {
    let HashJob {
        password,
        work,
        done,
    } = job;
    // The requester has stopped waiting, so the result would be discarded.
    if done.is_closed() {
        return;
    }
    hash_counter.fetch_add(1, Ordering::Relaxed);
    let outcome = match work {
        HashWork::Hash => hash(&password, params, memory).map(|hash| VerifyOutcome {
            outcome: PasswordMatch::Match,
            rehashed: Some(hash),
        }),
        HashWork::Verify(stored) => verify(&password, &stored, params, memory),
    };
    // The requester may have stopped waiting; the result is discarded.
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
        DerivationParams {
            algorithm: Algorithm::Argon2id,
            version: Version::V0x13,
            params,
        },
        memory,
    )?;
    phc(params, &salt, &out)
}

fn verify(
    password: &Secret,
    stored: &str,
    params: &Params,
    memory: &mut Vec<Block>,
) -> Result<VerifyOutcome, argon2::password_hash::Error> {
    let stored = PasswordHash::new(stored)?;
    let (Some(salt), Some(expected)) = (&stored.salt, &stored.hash) else {
        return Err(argon2::password_hash::Error::PasswordInvalid);
    };
    let algorithm = Algorithm::try_from(stored.algorithm.as_str())?;
    let version = stored
        .version
        .map(Version::try_from)
        .transpose()?
        .unwrap_or_default();
    let stored_params = Params::try_from(&stored)?;
    let mut out = vec![0; expected.len()];
    derive(
        password,
        salt,
        &mut out,
        DerivationParams {
            algorithm,
            version,
            params: &stored_params,
        },
        memory,
    )?;
    if !bool::from(out.ct_eq(expected.as_bytes())) {
        return Ok(VerifyOutcome {
            outcome: PasswordMatch::Mismatch,
            rehashed: None,
        });
    }
    let today = (
        stored_params.m_cost(),
        stored_params.t_cost(),
        stored_params.p_cost(),
    ) == (params.m_cost(), params.t_cost(), params.p_cost())
        && algorithm == Algorithm::Argon2id;
    let rehashed = if today {
        None
    } else {
        Some(hash(password, params, memory)?)
    };
    Ok(VerifyOutcome {
        outcome: PasswordMatch::Match,
        rehashed,
    })
}

/// The algorithm and cost of a hash.
struct DerivationParams<'a> {
    algorithm: Algorithm,
    version: Version,
    params: &'a Params,
}

fn derive(
    password: &Secret,
    salt: &[u8],
    out: &mut [u8],
    DerivationParams {
        algorithm,
        version,
        params,
    }: DerivationParams<'_>,
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

/// Returns a hash that matches no password, with the parameters of real hashes.
fn dummy_hash(params: &Params) -> Result<String, argon2::password_hash::Error> {
    let mut random = [0; 48];
    getrandom::fill(&mut random).map_err(|_| argon2::password_hash::Error::Crypto)?;
    phc(params, &random[..16], &random[16..])
}

#[cfg(test)]
mod tests;
