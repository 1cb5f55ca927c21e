//! One-time codes: made, sent, checked, used once.

use std::time::Duration;

use postern_common::Secret;
use postern_common::clock::Timestamp;
use serde_json::{Value, json};

use crate::delivery::{CodeMail, CodePurpose, masked};
use crate::fault::Fault;
use crate::pool::Pool;
use crate::random;
use crate::server::Server;
use crate::store::{Checked, CodeKey};
use crate::user::User;

/// How many codes a name gets in an hour.
const PER_HOUR: i64 = 10;
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A code's place: a name in a pool, the address that it proves, and the purpose. A code proves no
/// other address than the one that it was sent to, even if the user changes its own in between.
#[derive(Clone, Debug)]
pub(super) struct Place<'a> {
    pool_id: &'a str,
    name: String,
    address: &'a str,
    purpose: CodePurpose,
}

impl<'a> Place<'a> {
    /// The place of a user's code.
    pub(super) fn of(user: &'a User, purpose: CodePurpose) -> Self {
        Self::at(
            &user.pool_id,
            &user.username,
            user.email().unwrap_or_default(),
            purpose,
        )
    }

    /// The place of a code for whoever typed a name: a user that was found, or nobody.
    pub(super) fn of_typed(
        pool: &'a Pool,
        found: Option<&'a User>,
        typed: &'a str,
        purpose: CodePurpose,
    ) -> Self {
        match found {
            Some(user) => Self::of(user, purpose),
            None => Self::at(&pool.id, typed, typed, purpose),
        }
    }

    fn at(pool_id: &'a str, name: &str, address: &'a str, purpose: CodePurpose) -> Self {
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

    /// How long a code works: Cognito's hour for a forgotten password, a day for the rest.
    fn lifetime(&self) -> Duration {
        match self.purpose {
            CodePurpose::ForgotPassword => HOUR,
            CodePurpose::SignUp | CodePurpose::VerifyEmail | CodePurpose::Invitation => DAY,
        }
    }

    /// Makes a code, and sends it if the name may have one. If not, the same work is done.
    pub(super) async fn send(&self, server: &Server, may_have: bool) -> Result<(), Fault> {
        let now = server.clock.now();
        let hour_ago = Timestamp(now.0 - i64::try_from(HOUR.as_millis()).unwrap_or(0));
        if server.store.codes_sent(self.key(), hour_ago).await? >= PER_HOUR {
            return Err(Fault::attempts_exceeded());
        }
        let code = random::digits()?;
        let times = (now.plus(self.lifetime()), hour_ago);
        server
            .store
            .put_code(self.key(), &self.hash(&code), now, times)
            .await?;
        if !may_have || self.address.is_empty() {
            return Ok(());
        }
        let mail = CodeMail {
            to: self.address.to_owned(),
            purpose: self.purpose,
            code: Secret::new(code),
        };
        server.delivery.deliver(mail)
    }

    /// Refuses a code that is wrong, unknown, expired, used, or was guessed at too often.
    pub(super) async fn check(&self, server: &Server, code: &str) -> Result<(), Fault> {
        let now = server.clock.now();
        match server
            .store
            .check_code(self.key(), &self.hash(code), now)
            .await?
        {
            Checked::Right => Ok(()),
            Checked::Wrong => Err(Fault::code_mismatch()),
            Checked::Gone => Err(Fault::code_expired()),
            Checked::Exhausted => Err(Fault::attempts_exceeded()),
        }
    }

    /// Uses a code that was checked.
    pub(super) async fn consume(&self, server: &Server, code: &str) -> Result<(), Fault> {
        if server.store.use_code(self.key(), &self.hash(code)).await? {
            return Ok(());
        }
        Err(Fault::code_expired())
    }
}

/// The `CodeDeliveryDetailsType` of an answer; what was typed stands in for the address of an
/// unknown user.
pub(super) fn details(address: &str) -> Value {
    json!({"Destination": masked(address), "DeliveryMedium": "EMAIL", "AttributeName": "email"})
}
