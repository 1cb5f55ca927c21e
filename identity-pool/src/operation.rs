//! The operations of the API, by name.

mod account;
mod admin_user;
mod attributes;
mod challenge;
mod clients;
mod codes;
mod groups;
mod password;
mod pools;
mod refresh;
mod sign_in;
mod sign_up;

pub(crate) use self::clients::make as make_client;
pub(crate) use self::pools::make as make_pool;
pub(crate) use self::sign_up::new_user;

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fault::{Fault, Kind};
use crate::pool::Client;
use crate::server::Server;
use crate::user::User;

/// One call.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Server,
    pub(crate) body: &'a [u8],
    pub(crate) subject: Mutex<Subject>,
}

/// Whom a call concerned, for the audit log: ids only, never what a person typed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    pub(crate) pool_id: Option<String>,
    pub(crate) client_id: Option<String>,
    pub(crate) sub: Option<String>,
}

/// Who may call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Anyone; what authorises the call stands in its body.
    Public,
    /// Who signs with the administrator's access key (SigV4).
    Administrator,
}

/// A request that names only a pool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfPool {
    user_pool_id: String,
}

/// A request that names only a user.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct OfUser {
    user_pool_id: String,
    username: String,
}

// === impl Call ===

impl<'a> Call<'a> {
    pub(crate) fn new(server: &'a Server, body: &'a [u8]) -> Self {
        Self {
            server,
            body,
            subject: Mutex::default(),
        }
    }

    /// Reads the body. Members that are not known are passed over, as AWS does.
    fn read<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        serde_json::from_slice(self.body).map_err(|error| {
            let text = error.to_string();
            match text
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split('`').next())
            {
                Some(member) => Fault::missing(&lower_first(member)),
                None => Fault::new(Kind::Serialization, "The request body cannot be read"),
            }
        })
    }

    fn note(&self, note: impl FnOnce(&mut Subject)) {
        note(&mut self.subject.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn note_client(&self, client: &Client) {
        self.note(|subject| {
            subject.pool_id = Some(client.pool_id.clone());
            subject.client_id = Some(client.id.clone());
        });
    }

    fn note_user(&self, user: &User) {
        self.note(|subject| {
            subject.pool_id = Some(user.pool_id.clone());
            subject.sub = Some(user.sub.clone());
        });
    }

    /// The user that an administrator's request names.
    async fn admin_user(&self, pool_id: &str, username: &str) -> Result<User, Fault> {
        self.server.directory.pool(pool_id)?;
        self.note(|subject| subject.pool_id = Some(pool_id.to_owned()));
        let user = self.server.known_user(pool_id, username).await?;
        self.note_user(&user);
        Ok(user)
    }
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_ascii_lowercase().to_string() + letters.as_str()
    })
}

/// The answer of an operation that returns nothing.
fn nothing() -> Value {
    json!({})
}

/// What guards an operation; `None` when there is no such operation here.
pub(crate) fn access(operation: &str) -> Option<Access> {
    if PUBLIC.contains(&operation) {
        return Some(Access::Public);
    }
    ADMINISTRATIVE
        .contains(&operation)
        .then_some(Access::Administrator)
}

const PUBLIC: [&str; 17] = [
    "ChangePassword",
    "ConfirmForgotPassword",
    "ConfirmSignUp",
    "DeleteUser",
    "DeleteUserAttributes",
    "ForgotPassword",
    "GetTokensFromRefreshToken",
    "GetUser",
    "GetUserAttributeVerificationCode",
    "GlobalSignOut",
    "InitiateAuth",
    "ResendConfirmationCode",
    "RespondToAuthChallenge",
    "RevokeToken",
    "SignUp",
    "UpdateUserAttributes",
    "VerifyUserAttribute",
];

const ADMINISTRATIVE: [&str; 36] = [
    "AdminAddUserToGroup",
    "AdminConfirmSignUp",
    "AdminCreateUser",
    "AdminDeleteUser",
    "AdminDeleteUserAttributes",
    "AdminDisableUser",
    "AdminEnableUser",
    "AdminGetUser",
    "AdminInitiateAuth",
    "AdminListGroupsForUser",
    "AdminRemoveUserFromGroup",
    "AdminResetUserPassword",
    "AdminRespondToAuthChallenge",
    "AdminSetUserPassword",
    "AdminUpdateUserAttributes",
    "AdminUserGlobalSignOut",
    "CreateGroup",
    "CreateUserPool",
    "CreateUserPoolClient",
    "DeleteGroup",
    "DeleteUserPool",
    "DeleteUserPoolClient",
    "DescribeUserPool",
    "DescribeUserPoolClient",
    "GetGroup",
    "GetUserPoolMfaConfig",
    "ListGroups",
    "ListTagsForResource",
    "ListUserPoolClients",
    "ListUserPools",
    "ListUsers",
    "ListUsersInGroup",
    "SetUserPoolMfaConfig",
    "UpdateGroup",
    "UpdateUserPool",
    "UpdateUserPoolClient",
];

/// Runs an operation that [`access`] knows.
pub(crate) async fn run(operation: &str, call: &Call<'_>) -> Result<Value, Fault> {
    match access(operation) {
        Some(Access::Public) => Box::pin(run_public(operation, call)).await,
        Some(Access::Administrator) if operation.starts_with("Admin") => {
            Box::pin(run_admin(operation, call)).await
        }
        Some(Access::Administrator) => Box::pin(run_directory(operation, call)).await,
        None => Err(unknown(operation)),
    }
}

pub(crate) fn unknown(operation: &str) -> Fault {
    Fault::new(
        Kind::UnknownOperation,
        format!("The operation {operation} is not offered here"),
    )
}

async fn run_public(operation: &str, call: &Call<'_>) -> Result<Value, Fault> {
    match operation {
        "ChangePassword" => password::change(call, call.read()?).await,
        "ConfirmForgotPassword" => password::confirm_forgot(call, call.read()?).await,
        "ConfirmSignUp" => sign_up::confirm(call, call.read()?).await,
        "DeleteUser" => account::delete(call, call.read()?).await,
        "DeleteUserAttributes" => account::delete_attributes(call, call.read()?).await,
        "ForgotPassword" => password::forgot(call, call.read()?).await,
        "GetTokensFromRefreshToken" => refresh::rotate(call, call.read()?).await,
        "GetUser" => account::get(call, call.read()?).await,
        "GetUserAttributeVerificationCode" => account::send_verification(call, call.read()?).await,
        "GlobalSignOut" => account::sign_out(call, call.read()?).await,
        "InitiateAuth" => sign_in::initiate(call, call.read()?).await,
        "ResendConfirmationCode" => sign_up::resend(call, call.read()?).await,
        "RespondToAuthChallenge" => challenge::respond(call, call.read()?).await,
        "RevokeToken" => refresh::revoke(call, call.read()?).await,
        "SignUp" => sign_up::sign_up(call, call.read()?).await,
        "UpdateUserAttributes" => account::update_attributes(call, call.read()?).await,
        "VerifyUserAttribute" => account::verify_attribute(call, call.read()?).await,
        other => Err(unknown(other)),
    }
}

async fn run_admin(operation: &str, call: &Call<'_>) -> Result<Value, Fault> {
    match operation {
        "AdminAddUserToGroup" => groups::add_user(call, call.read()?).await,
        "AdminConfirmSignUp" => admin_user::confirm_sign_up(call, call.read()?).await,
        "AdminCreateUser" => admin_user::create(call, call.read()?).await,
        "AdminDeleteUser" => admin_user::delete(call, call.read()?).await,
        "AdminDeleteUserAttributes" => admin_user::delete_attributes(call, call.read()?).await,
        "AdminDisableUser" => admin_user::set_enabled(call, call.read()?, false).await,
        "AdminEnableUser" => admin_user::set_enabled(call, call.read()?, true).await,
        "AdminGetUser" => admin_user::get(call, call.read()?).await,
        "AdminInitiateAuth" => sign_in::admin_initiate(call, call.read()?).await,
        "AdminListGroupsForUser" => groups::of_user(call, call.read()?).await,
        "AdminRemoveUserFromGroup" => groups::remove_user(call, call.read()?).await,
        "AdminResetUserPassword" => admin_user::reset_password(call, call.read()?).await,
        "AdminRespondToAuthChallenge" => challenge::admin_respond(call, call.read()?).await,
        "AdminSetUserPassword" => admin_user::set_password(call, call.read()?).await,
        "AdminUpdateUserAttributes" => admin_user::update_attributes(call, call.read()?).await,
        "AdminUserGlobalSignOut" => admin_user::sign_out(call, call.read()?).await,
        other => Err(unknown(other)),
    }
}

async fn run_directory(operation: &str, call: &Call<'_>) -> Result<Value, Fault> {
    match operation {
        "CreateGroup" => groups::create(call, call.read()?).await,
        "CreateUserPool" => pools::create(call, call.read()?).await,
        "CreateUserPoolClient" => clients::create(call, call.read()?).await,
        "DeleteGroup" => groups::delete(call, call.read()?).await,
        "DeleteUserPool" => pools::delete(call, call.read()?).await,
        "DeleteUserPoolClient" => clients::delete(call, call.read()?).await,
        "DescribeUserPool" => pools::describe(call, call.read()?).await,
        "DescribeUserPoolClient" => clients::describe(call, &call.read()?),
        "GetGroup" => groups::get(call, call.read()?).await,
        "GetUserPoolMfaConfig" => pools::mfa_config(call, &call.read()?),
        "ListGroups" => groups::list(call, call.read()?).await,
        "ListTagsForResource" => Ok(json!({"Tags": {}})),
        "ListUserPoolClients" => clients::list(call, &call.read()?),
        "ListUserPools" => Ok(pools::list(call)),
        "ListUsers" => admin_user::list(call, call.read()?).await,
        "ListUsersInGroup" => groups::users(call, call.read()?).await,
        "SetUserPoolMfaConfig" => pools::set_mfa_config(call, &call.read()?),
        "UpdateGroup" => groups::update(call, call.read()?).await,
        "UpdateUserPool" => pools::update(call, call.read()?).await,
        "UpdateUserPoolClient" => clients::update(call, call.read()?).await,
        other => Err(unknown(other)),
    }
}
