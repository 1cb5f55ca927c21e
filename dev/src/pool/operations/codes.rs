//! One-time codes: issue, verification, and consumption.

use std::time::Duration;

use postern_common::Secret;
use serde_json::{Value, json};

use crate::pool::code_delivery::{CodeMail, CodePurpose, masked};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{Code, User, UserPool};

/// Maximum number of codes per name and hour.
const MAX_CODES_PER_HOUR: u32 = 10;
/// Wrong attempts after which a code is invalid.
const MAX_WRONG_ATTEMPTS: u32 = 5;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The binding of a code: pool, name, address, and purpose. A code is valid only for the address
/// that it was sent to, even if the user has changed the address in the meantime.
#[derive(Clone, Debug)]
pub(super) struct CodeBinding<'a> {
    /// Digest of the pool, the purpose, and the username or the name that was entered.
    id: String,
    address: &'a str,
    purpose: CodePurpose,
}

impl<'a> CodeBinding<'a> {
    /// Returns the binding of a user's code.
    pub(super) fn for_user(user: &'a User, purpose: CodePurpose) -> Self {
        let address = user.email().unwrap_or_default();
        Self::new(&user.pool_id, &user.username, address, purpose)
    }

    /// Returns the binding of a code for a name that was entered, whether or not a user has it.
    pub(super) fn for_entered_name(
        pool: &UserPool,
        found: Option<&'a User>,
        entered: &'a str,
        purpose: CodePurpose,
    ) -> Self {
        match found {
            Some(user) => Self::for_user(user, purpose),
            None => Self::new(&pool.id, entered, entered, purpose),
        }
    }

    fn new(pool_id: &str, name: &str, address: &'a str, purpose: CodePurpose) -> Self {
        Self {
            id: random::digest(&[pool_id, &name.to_lowercase(), purpose.name()]),
            address,
            purpose,
        }
    }

    fn hash(&self, code: &str) -> String {
        random::digest(&[&self.id, self.address, code])
    }

    /// Returns the lifetime of a code: one hour for a forgotten password, as in Cognito, otherwise
    /// one day.
    fn lifetime(&self) -> Duration {
        match self.purpose {
            CodePurpose::ForgotPassword => HOUR,
            CodePurpose::SignUp | CodePurpose::Invitation => DAY,
        }
    }

    /// Creates and stores a code, and sends it if `should_send` is set. A code that is not sent is
    /// stored as well, so that the response does not reveal by its time whether a user exists.
    pub(super) async fn issue(
        &self,
        context: &PoolContext,
        should_send: bool,
    ) -> Result<(), ApiError> {
        let now = context.clock.now();
        let code = random::six_digits()?;
        let replace = |stored: &mut Option<Code>| {
            let (sent, window_start) = match stored {
                Some(code) if now.0 < code.window_start + 3_600_000 => {
                    (code.sent, code.window_start)
                }
                Some(_) | None => (0, now.0),
            };
            if sent >= MAX_CODES_PER_HOUR {
                return Err(ApiError::attempts_exceeded());
            }
            *stored = Some(Code {
                hash: Some(self.hash(&code)),
                expires_at: now.plus(self.lifetime()).0,
                wrong_attempts: 0,
                sent: sent + 1,
                window_start,
            });
            Ok(())
        };
        context.store.codes.update(&self.id, replace).await?;
        if !should_send || self.address.is_empty() {
            return Ok(());
        }
        let mail = CodeMail {
            to: self.address.to_owned(),
            purpose: self.purpose,
            code: Secret::new(code),
        };
        context.delivery.deliver(mail)
    }

    /// Verifies a code, which remains valid until [`CodeBinding::consume`]. Fails if it is wrong,
    /// unknown, expired or used, or after too many wrong codes.
    pub(super) async fn check(&self, context: &PoolContext, code: &str) -> Result<(), ApiError> {
        let (hash, now) = (Some(self.hash(code)), context.clock.now().0);
        let check = |stored: &mut Option<Code>| {
            let usable = stored
                .as_mut()
                .filter(|code| code.hash.is_some() && code.expires_at > now);
            let code = usable.ok_or_else(ApiError::code_expired)?;
            if code.wrong_attempts >= MAX_WRONG_ATTEMPTS {
                return Err(ApiError::attempts_exceeded());
            }
            let is_match = code.hash == hash;
            code.wrong_attempts += u32::from(!is_match);
            Ok(is_match)
        };
        if context.store.codes.update(&self.id, check).await? {
            Ok(())
        } else {
            Err(ApiError::code_mismatch())
        }
    }

    /// Consumes a verified code. Fails if a concurrent request consumed it.
    pub(super) async fn consume(&self, context: &PoolContext, code: &str) -> Result<(), ApiError> {
        let hash = Some(self.hash(code));
        let consume = |stored: &mut Option<Code>| {
            let current = stored.as_mut().filter(|code| code.hash == hash);
            let used = current.ok_or_else(ApiError::code_expired)?;
            used.hash = None;
            Ok(())
        };
        context.store.codes.update(&self.id, consume).await
    }
}

/// Returns the `CodeDeliveryDetailsType` of a response. For an unknown user, `address` is the name
/// that was entered.
pub(super) fn delivery_details(address: &str) -> Value {
    json!({"Destination": masked(address), "DeliveryMedium": "EMAIL", "AttributeName": "email"})
}
