//! Calls under the operator's AWS credentials, signed with SigV4. All of them are optional: without
//! credentials the flows do without.

use std::sync::Arc;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::primitives::DateTime;
use aws_sdk_cognitoidentityprovider::types::{
    AttributeType, MessageActionType, UserPoolClientType, UserPoolType, UserStatusType,
};
use postern_core::clock::Timestamp;
use postern_core::email::EmailAddress;
use postern_core::identity::Pool;

use super::circuit_breaker::PoolCircuitBreaker;
use super::error::{PoolError, PoolFault, PoolResult};
use crate::telemetry::PoolOperation as Op;

#[derive(Debug)]
pub(crate) struct PoolAdmin {
    pub(super) client: Client,
    pub(super) breaker: Arc<PoolCircuitBreaker>,
    pub(super) pool: Pool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PoolAccount {
    /// The pool's user name, which differs from the e-mail address.
    pub(crate) username: String,
    pub(crate) subject: String,
    email: Option<String>,
    /// Whether the e-mail address was verified, by the user or by an operator.
    pub(crate) is_verified: bool,
    pub(crate) is_enabled: bool,
    /// Whether the user was created by an administrator and has not chosen a password yet.
    pub(crate) is_invited: bool,
    /// Whether the user has registered and not confirmed the address.
    pub(crate) is_unconfirmed: bool,
    pub(crate) created_at: Timestamp,
}

// === impl PoolAdmin ===

macro_rules! admin_call {
    ($admin:expr, $operation:ident, $name:expr) => {
        $admin
            .client
            .$operation()
            .user_pool_id(&$admin.pool.pool_id)
            .username($name)
    };
}
pub(super) use admin_call;

impl PoolAdmin {
    pub(crate) async fn confirm_sign_up(&self, name: &str) -> PoolResult {
        let call = admin_call!(self, admin_confirm_sign_up, name);
        self.breaker.run(Op::AdminConfirmSignUp, call.send()).await
    }

    pub(crate) async fn verify_email(&self, name: &str) -> PoolResult {
        let call = admin_call!(self, admin_update_user_attributes, name)
            .user_attributes(attribute("email_verified", "true"));
        self.breaker
            .run(Op::AdminUpdateUserAttributes, call.send())
            .await
    }

    /// Deletes a user. Succeeds if the user does not exist.
    pub(crate) async fn delete_user(&self, name: &str) -> PoolResult {
        let call = admin_call!(self, admin_delete_user, name);
        match self.breaker.run(Op::AdminDeleteUser, call.send()).await {
            Err(fault) if fault.error == PoolError::UserNotFound => Ok(()),
            decided => decided,
        }
    }

    /// Finds the user with an address. Without `UsernameAttributes`, the name of another one may look
    /// like it.
    pub(crate) async fn find_owner(&self, email: &EmailAddress) -> PoolResult<Option<PoolAccount>> {
        let found = self.find_user(email.as_str()).await?;
        let address = Some(email.as_str().to_lowercase());
        let own = |it: &PoolAccount| it.email.as_ref().map(|own| own.to_lowercase());
        Ok(found.filter(|it| own(it) == address))
    }

    pub(crate) async fn find_user(&self, name: &str) -> PoolResult<Option<PoolAccount>> {
        let call = admin_call!(self, admin_get_user, name);
        let found = self.breaker.call(Op::AdminGetUser, call.send()).await;
        let response = match found {
            Ok(response) => response,
            Err(fault) if fault.error == PoolError::UserNotFound => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let status = response.user_status();
        let attributes = response.user_attributes();
        let is_verified = value_of(attributes, "email_verified") == Some("true");
        let is_unconfirmed = status == Some(&UserStatusType::Unconfirmed);
        Ok(Some(PoolAccount {
            is_verified: is_verified && !is_unconfirmed,
            is_unconfirmed,
            is_enabled: response.enabled(),
            is_invited: status == Some(&UserStatusType::ForceChangePassword),
            ..new_account(response.username(), attributes, response.user_create_date())
        }))
    }

    /// Creates a user with a verified address and a random password. The pool sends no message.
    pub(crate) async fn create_user(&self, email: &EmailAddress) -> PoolResult<PoolAccount> {
        let call = admin_call!(self, admin_create_user, email.as_str())
            .message_action(MessageActionType::Suppress)
            .user_attributes(attribute("email", email.as_str()))
            .user_attributes(attribute("email_verified", "true"));
        let response = self.breaker.call(Op::AdminCreateUser, call.send()).await?;
        let user = response.user();
        let account = user.and_then(|user| {
            let (attributes, created_at) = (user.attributes(), user.user_create_date());
            Some(new_account(user.username()?, attributes, created_at))
        });
        account.ok_or_else(|| no_answer("response without the user"))
    }

    /// Sets a permanent password. The user becomes CONFIRMED.
    pub(crate) async fn set_password(&self, username: &str, password: &str) -> PoolResult {
        let call = admin_call!(self, admin_set_user_password, username)
            .password(password)
            .permanent(true);
        self.breaker
            .run(Op::AdminSetUserPassword, call.send())
            .await
    }

    pub(crate) async fn sign_out_everywhere(&self, username: &str) -> PoolResult {
        let call = admin_call!(self, admin_user_global_sign_out, username);
        self.breaker
            .run(Op::AdminUserGlobalSignOut, call.send())
            .await
    }

    pub(crate) async fn describe_pool(&self, pool: &str) -> PoolResult<UserPoolType> {
        let call = self.client.describe_user_pool().user_pool_id(pool);
        let response = self.breaker.call(Op::DescribeUserPool, call.send()).await?;
        let pool = response.user_pool;
        pool.ok_or_else(|| no_answer("response without the pool"))
    }

    pub(crate) async fn describe_app_client(
        &self,
        pool: &str,
        client: &str,
    ) -> PoolResult<UserPoolClientType> {
        let call = self
            .client
            .describe_user_pool_client()
            .user_pool_id(pool)
            .client_id(client);
        let response = self
            .breaker
            .call(Op::DescribeUserPoolClient, call.send())
            .await?;
        let client = response.user_pool_client;
        client.ok_or_else(|| no_answer("response without the app client"))
    }
}

/// Returns a user as AdminCreateUser creates one.
fn new_account(
    username: &str,
    attributes: &[AttributeType],
    created_at: Option<&DateTime>,
) -> PoolAccount {
    let created_at = created_at.map_or(i64::MIN, |at| at.secs().saturating_mul(1000));
    PoolAccount {
        username: username.to_owned(),
        subject: value_of(attributes, "sub").unwrap_or(username).to_owned(),
        email: value_of(attributes, "email").map(str::to_owned),
        is_verified: true,
        is_enabled: true,
        is_invited: true,
        is_unconfirmed: false,
        created_at: Timestamp(created_at),
    }
}

pub(super) fn value_of<'a>(attributes: &'a [AttributeType], name: &str) -> Option<&'a str> {
    let mut matching = attributes.iter().filter(|found| found.name() == name);
    matching.next()?.value()
}

pub(super) fn attribute(name: &str, value: &str) -> AttributeType {
    let attribute = AttributeType::builder().name(name).value(value);
    attribute.build().expect("the attribute has a name")
}

fn no_answer(reason: &'static str) -> PoolFault {
    PoolFault {
        operation: Op::AdminGetUser,
        error: PoolError::Unavailable(reason),
    }
}
