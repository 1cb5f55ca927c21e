//! Password hashing with argon2id, with at most one hash per core at a time.

use std::sync::Arc;

use argon2::password_hash::phc::{Output, ParamsString, PasswordHash, Salt};
use argon2::password_hash::{Error, PasswordHasher as _, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use postern_core::Secret;
use tokio::sync::Semaphore;

use crate::pool::error::ApiError;

/// The cost of password hashing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashingSettings {
    /// Memory of one hash in KiB. Default 64 MiB.
    pub memory_kib: u32,
    /// Passes over the memory. Default 3.
    pub passes: u32,
}

impl Default for HashingSettings {
    fn default() -> Self {
        Self {
            memory_kib: 64 << 10,
            passes: 3,
        }
    }
}

/// Hashes and verifies passwords on blocking threads.
#[derive(Debug)]
pub(crate) struct PasswordHasher {
    argon2: Argon2<'static>,
    permits: Arc<Semaphore>,
    /// Hash that is verified against if the user does not exist.
    dummy_hash: String,
}

// === impl PasswordHasher ===

impl PasswordHasher {
    pub(crate) fn new(hashing: HashingSettings) -> Result<Self, ApiError> {
        let params = Params::new(hashing.memory_kib, hashing.passes, 1, None)
            .map_err(|error| ApiError::internal(&error))?;
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Ok(Self {
            dummy_hash: dummy_hash(&params).map_err(|error| ApiError::internal(&error))?,
            argon2: Argon2::new(Algorithm::Argon2id, Version::V0x13, params),
            permits: Arc::new(Semaphore::new(cores)),
        })
    }

    /// Hashes a password. Returns a PHC string.
    pub(crate) async fn hash(&self, password: &Secret) -> Result<String, ApiError> {
        let hash = self
            .run(password, Argon2::hash_password)
            .await?
            .map_err(|error| ApiError::internal(&error))?;
        Ok(hash.to_string())
    }

    /// Returns whether a password is that of a stored hash. Without one, takes the same time and
    /// returns `false`.
    pub(crate) async fn verify(
        &self,
        password: &Secret,
        stored: Option<&str>,
    ) -> Result<bool, ApiError> {
        let hash = stored.unwrap_or(&self.dummy_hash).to_owned();
        let verified = self
            .run(password, move |argon2, password| {
                argon2.verify_password(password, hash.as_str())
            })
            .await?;
        match verified {
            Ok(()) => Ok(stored.is_some()),
            Err(Error::PasswordInvalid) => Ok(false),
            Err(error) => Err(ApiError::internal(&error)),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        password: &Secret,
        work: impl FnOnce(&Argon2<'static>, &[u8]) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|error| ApiError::internal(&error))?;
        let (argon2, password) = (self.argon2.clone(), password.clone());
        // The permit ends with the hash, even if the requester has stopped waiting.
        let hashing = tokio::task::spawn_blocking(move || {
            let outcome = work(&argon2, password.expose().as_bytes());
            drop(permit);
            outcome
        });
        hashing.await.map_err(|error| ApiError::internal(&error))
    }
}

/// Returns a hash that matches no password, with the parameters of real hashes.
fn dummy_hash(params: &Params) -> Result<String, Error> {
    let mut random = [0; 48];
    getrandom::fill(&mut random).map_err(|_| Error::Crypto)?;
    let hash = PasswordHash {
        algorithm: Algorithm::Argon2id.ident(),
        version: Some(Version::V0x13.into()),
        params: ParamsString::try_from(params)?,
        salt: Some(Salt::new(&random[..16])?),
        hash: Some(Output::new(&random[16..])?),
    };
    Ok(hash.to_string())
}
