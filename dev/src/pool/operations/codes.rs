//! One-time codes: issue, verification, and consumption.

use std::time::Duration;

use postern_common::Secret;
use postern_common::clock::Timestamp;
use serde_json::{Value, json};

use crate::pool::code_delivery::{CodeMail, CodePurpose, masked};
use crate::pool::context::PoolContext;
use crate::pool::crypto::random;
use crate::pool::error::ApiError;
use crate::pool::model::{User, UserPool};
use crate::pool::store::{CodeCheck, CodeKey, CodeTimes};

/// Maximum number of codes per name and hour.
const MAX_CODES_PER_HOUR: i64 = 10;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// The binding of a code: pool, name, address, and purpose. A code is valid only for the address
/// that it was sent to, even if the user has changed the address in the meantime.
#[derive(Clone, Debug)]
pub(super) struct CodeBinding<'a> {
    pool_id: &'a str,
    /// Digest of the username, or of the name that was entered.
    name: String,
    address: &'a str,
    purpose: CodePurpose,
}

impl<'a> CodeBinding<'a> {
    /// Returns the binding of a user's code.
    pub(super) fn for_user(user: &'a User, purpose: CodePurpose) -> Self {
        Self::new(
            &user.pool_id,
            &user.username,
            user.email().unwrap_or_default(),
            purpose,
        )
    }

    /// Returns the binding of a code for a name that was entered, whether or not a user has it.
    pub(super) fn for_entered_name(
        pool: &'a UserPool,
        found: Option<&'a User>,
        entered: &'a str,
        purpose: CodePurpose,
    ) -> Self {
        match found {
            Some(user) => Self::for_user(user, purpose),
            None => Self::new(&pool.id, entered, entered, purpose),
        }
    }

    fn new(pool_id: &'a str, name: &str, address: &'a str, purpose: CodePurpose) -> Self {
        Self {
            pool_id,
            name: random::digest(&[&name.to_lowercase()]),
            address,
            purpose,
        }
    }

    fn key(&self) -> CodeKey<'_> {
        CodeKey {
            pool_id: self.pool_id,
            name: &self.name,
            purpose: self.purpose.name(),
        }
    }

    fn hash(&self, code: &str) -> String {
        random::digest(&[
            self.pool_id,
            &self.name,
            self.address,
            self.purpose.name(),
            code,
        ])
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
        let hour_ago = Timestamp(now.0 - i64::try_from(HOUR.as_millis()).unwrap_or(0));
        if context.store.codes_sent(self.key(), hour_ago).await? >= MAX_CODES_PER_HOUR {
            return Err(ApiError::attempts_exceeded());
        }
        let code = random::six_digits()?;
        let times = CodeTimes {
            now,
            expires_at: now.plus(self.lifetime()),
            window_since: hour_ago,
        };
        context
            .store
            .put_code(self.key(), &self.hash(&code), times)
            .await?;
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

    /// Verifies a code. Fails if it is wrong, unknown, expired or used, or after too many wrong
    /// codes.
    pub(super) async fn check(&self, context: &PoolContext, code: &str) -> Result<(), ApiError> {
        let now = context.clock.now();
        match context
            .store
            .check_code(self.key(), &self.hash(code), now)
            .await?
        {
            CodeCheck::Match => Ok(()),
            CodeCheck::Mismatch => Err(ApiError::code_mismatch()),
            CodeCheck::Expired => Err(ApiError::code_expired()),
            CodeCheck::Exhausted => Err(ApiError::attempts_exceeded()),
        }
    }

    /// Consumes a verified code.
    pub(super) async fn consume(&self, context: &PoolContext, code: &str) -> Result<(), ApiError> {
        if context
            .store
            .consume_code(self.key(), &self.hash(code))
            .await?
        {
            return Ok(());
        }
        Err(ApiError::code_expired())
    }
}

/// Returns the `CodeDeliveryDetailsType` of a response. For an unknown user, `address` is the name
/// that was entered.
pub(super) fn delivery_details(address: &str) -> Value {
    json!({"Destination": masked(address), "DeliveryMedium": "EMAIL", "AttributeName": "email"})
}
