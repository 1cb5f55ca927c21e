//! Calls under the operator's AWS credentials, signed with SigV4. Every one of them is optional:
//! without credentials the journeys do what they can without.

use std::collections::HashMap;
use std::sync::Arc;

use aws_sdk_cognitoidentityprovider::Client;
use aws_sdk_cognitoidentityprovider::types::{
    AttributeType, AuthFlowType, ChallengeNameType, MessageActionType, UserStatusType,
};
use postern_common::clock::Timestamp;
use postern_common::identity::Pool;

use super::fault::Fault;
use super::gate::Gate;
use super::{SignIn, step};
use crate::email::Email;

/// The pool, as its operator.
#[derive(Debug)]
pub(crate) struct AdminPool {
    client: Client,
    gate: Arc<Gate>,
    pool: Pool,
}

/// What a pool's client may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientSettings {
    /// ExplicitAuthFlows.
    pub(crate) flows: Vec<String>,
    /// ReadAttributes.
    pub(crate) reads: Vec<String>,
    /// WriteAttributes.
    pub(crate) writes: Vec<String>,
}

/// A user, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// The pool's real user name.
    pub(crate) username: String,
    pub(crate) subject: String,
    /// Whether the address is known to be the person's: they have shown it, or an operator says so.
    pub(crate) is_verified: bool,
    /// Whether an operator lets the user in.
    pub(crate) is_enabled: bool,
    /// Whether an operator made the user, who has not chosen a password yet.
    pub(crate) is_invited: bool,
    pub(crate) created_at: Timestamp,
}

// === impl AdminPool ===

impl AdminPool {
    pub(super) fn new(client: Client, gate: Arc<Gate>, pool: Pool) -> Self {
        Self { client, gate, pool }
    }

    pub(super) async fn sign_in(
        &self,
        name: &str,
        parameters: HashMap<String, String>,
    ) -> Result<SignIn, Fault> {
        let call = self
            .client
            .admin_initiate_auth()
            .user_pool_id(&self.pool.pool_id)
            .client_id(&self.pool.client_id)
            .auth_flow(AuthFlowType::AdminUserPasswordAuth)
            .set_auth_parameters(Some(parameters));
        let answer = self.gate.call(call.send()).await?;
        step!(name, answer)
    }

    pub(super) async fn answer(
        &self,
        challenge: &str,
        session: &str,
        username: &str,
        parameters: HashMap<String, String>,
    ) -> Result<SignIn, Fault> {
        let call = self
            .client
            .admin_respond_to_auth_challenge()
            .user_pool_id(&self.pool.pool_id)
            .client_id(&self.pool.client_id)
            .challenge_name(ChallengeNameType::from(challenge))
            .session(session)
            .set_challenge_responses(Some(parameters));
        let answer = self.gate.call(call.send()).await?;
        step!(username, answer)
    }

    /// Confirms a user who just signed up, without a code.
    pub(crate) async fn confirm(&self, name: &str) -> Result<(), Fault> {
        let call = self
            .client
            .admin_confirm_sign_up()
            .user_pool_id(&self.pool.pool_id)
            .username(name);
        self.gate.call(call.send()).await.map(drop)
    }

    /// Deletes a user; one who is not there counts as deleted.
    pub(crate) async fn delete(&self, name: &str) -> Result<(), Fault> {
        let call = self
            .client
            .admin_delete_user()
            .user_pool_id(&self.pool.pool_id)
            .username(name);
        match self.gate.call(call.send()).await.map(drop) {
            Err(Fault::UserNotFound) => Ok(()),
            decided => decided,
        }
    }

    /// Looks a user up by name or address.
    pub(crate) async fn find(&self, name: &str) -> Result<Option<Account>, Fault> {
        let call = self
            .client
            .admin_get_user()
            .user_pool_id(&self.pool.pool_id)
            .username(name);
        let answer = match self.gate.call(call.send()).await {
            Ok(answer) => answer,
            Err(Fault::UserNotFound) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        let attribute = |name: &str| {
            answer
                .user_attributes()
                .iter()
                .find(|attribute| attribute.name() == name)?
                .value()
        };
        let status = answer.user_status();
        let is_verified = attribute("email_verified") == Some("true");
        let created_at = answer
            .user_create_date()
            .map_or(i64::MIN, |at| at.secs().saturating_mul(1000));
        Ok(Some(Account {
            subject: attribute("sub").unwrap_or(answer.username()).to_owned(),
            is_verified: is_verified && status != Some(&UserStatusType::Unconfirmed),
            is_enabled: answer.enabled(),
            is_invited: status == Some(&UserStatusType::ForceChangePassword),
            username: answer.username().to_owned(),
            created_at: Timestamp(created_at),
        }))
    }

    /// Makes a user whose address a social provider vouches for. No mail is sent; no password is
    /// known to anyone.
    pub(crate) async fn create(&self, email: &Email) -> Result<Account, Fault> {
        let call = self
            .client
            .admin_create_user()
            .user_pool_id(&self.pool.pool_id)
            .username(email.as_str())
            .message_action(MessageActionType::Suppress)
            .user_attributes(attribute("email", email.as_str())?)
            .user_attributes(attribute("email_verified", "true")?);
        let answer = self.gate.call(call.send()).await?;
        let user = answer
            .user()
            .ok_or(Fault::Unavailable("an answer without the user"))?;
        let username = user
            .username()
            .ok_or(Fault::Unavailable("an answer without the user"))?
            .to_owned();
        let subject = user
            .attributes()
            .iter()
            .find(|attribute| attribute.name() == "sub");
        let subject = subject
            .and_then(AttributeType::value)
            .unwrap_or(&username)
            .to_owned();
        let created_at = user
            .user_create_date()
            .map_or(i64::MIN, |at| at.secs().saturating_mul(1000));
        let created_at = Timestamp(created_at);
        Ok(Account {
            username,
            subject,
            is_verified: true,
            is_enabled: true,
            is_invited: true,
            created_at,
        })
    }

    /// Sets a password for good; the user becomes CONFIRMED.
    pub(crate) async fn set_password(&self, username: &str, password: &str) -> Result<(), Fault> {
        let call = self
            .client
            .admin_set_user_password()
            .user_pool_id(&self.pool.pool_id)
            .username(username)
            .password(password)
            .permanent(true);
        self.gate.call(call.send()).await.map(drop)
    }

    /// Ends every session of a user: no refresh token issued before works any more.
    pub(crate) async fn sign_out_everywhere(&self, username: &str) -> Result<(), Fault> {
        let call = self
            .client
            .admin_user_global_sign_out()
            .user_pool_id(&self.pool.pool_id)
            .username(username);
        self.gate.call(call.send()).await.map(drop)
    }

    /// What a client of this pool or another may do.
    pub(crate) async fn describe_client(
        &self,
        pool: &str,
        client: &str,
    ) -> Result<ClientSettings, Fault> {
        let call = self
            .client
            .describe_user_pool_client()
            .user_pool_id(pool)
            .client_id(client);
        let answer = self.gate.call(call.send()).await?;
        let client = answer
            .user_pool_client()
            .ok_or(Fault::Unavailable("an answer without the client"))?;
        Ok(ClientSettings {
            flows: client
                .explicit_auth_flows()
                .iter()
                .map(|flow| flow.as_str().to_owned())
                .collect(),
            reads: client.read_attributes().to_vec(),
            writes: client.write_attributes().to_vec(),
        })
    }
}

fn attribute(name: &str, value: &str) -> Result<AttributeType, Fault> {
    AttributeType::builder()
        .name(name)
        .value(value)
        .build()
        .map_err(|_| Fault::InvalidParameter)
}
