//! The operations of the API, one function each.
//!
//! Input: an authenticated call with its body. Output: the response value or an [`ApiError`].
//! Operations check parameters and permissions, and depend on `context`, `tokens`, and the layers
//! below.

mod account;
mod admin_users;
mod app_clients;
mod attributes;
mod challenges;
mod codes;
mod groups;
mod lockout;
mod passwords;
mod refresh;
mod sign_in;
mod sign_up;
mod user_pools;

pub(crate) use self::app_clients::create_client;
pub(crate) use self::sign_up::new_user;
pub(crate) use self::user_pools::create_pool;

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::context::PoolContext;
use crate::error::{ApiError, ExceptionKind};
use crate::model::{AppClient, User};

/// A call of an operation.
pub(crate) struct OperationCall<'a> {
    pub(crate) context: &'a PoolContext,
    pub(crate) body: &'a [u8],
    pub(crate) subject: Mutex<AuditSubject>,
}

/// The ids of the pool, client, and user that a call concerns, for the audit log. Never user input.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditSubject {
    pub(crate) pool_id: Option<String>,
    pub(crate) client_id: Option<String>,
    pub(crate) sub: Option<String>,
}

/// The authentication that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationAccess {
    /// No signature; credentials in the body, such as an access token, authorize the call.
    Public,
    /// A signature (SigV4) with the administrator's access key.
    Administrator,
}

/// A request with a pool id only.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PoolRequest {
    user_pool_id: String,
}

/// A request with a pool id and a username only.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct UserRequest {
    user_pool_id: String,
    username: String,
}

// === impl OperationCall ===

impl<'a> OperationCall<'a> {
    pub(crate) fn new(context: &'a PoolContext, body: &'a [u8]) -> Self {
        Self {
            context,
            body,
            subject: Mutex::default(),
        }
    }

    /// Parses the body. Unknown members are ignored, as in AWS.
    fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        serde_json::from_slice(self.body).map_err(|error| {
            let text = error.to_string();
            match text
                .strip_prefix("missing field `")
                .and_then(|rest| rest.split('`').next())
            {
                Some(member) => ApiError::missing(&lower_first(member)),
                None => ApiError::new(
                    ExceptionKind::Serialization,
                    "The request body cannot be read",
                ),
            }
        })
    }

    fn record(&self, record: impl FnOnce(&mut AuditSubject)) {
        record(&mut self.subject.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn record_client(&self, client: &AppClient) {
        self.record(|subject| {
            subject.pool_id = Some(client.pool_id.clone());
            subject.client_id = Some(client.id.clone());
        });
    }

    fn record_user(&self, user: &User) {
        self.record(|subject| {
            subject.pool_id = Some(user.pool_id.clone());
            subject.sub = Some(user.sub.clone());
        });
    }

    /// Finds the user that an administrator's request names.
    async fn find_user(&self, pool_id: &str, username: &str) -> Result<User, ApiError> {
        self.context.directory.pool(pool_id)?;
        self.record(|subject| subject.pool_id = Some(pool_id.to_owned()));
        let user = self.context.find_user(pool_id, username).await?;
        self.record_user(&user);
        Ok(user)
    }
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_ascii_lowercase().to_string() + letters.as_str()
    })
}

/// Returns the response of an operation without output.
fn empty_response() -> Value {
    json!({})
}

/// Returns the authentication that an operation requires, or `None` if the operation is unknown.
pub(crate) fn access(operation: &str) -> Option<OperationAccess> {
    if PUBLIC.contains(&operation) {
        return Some(OperationAccess::Public);
    }
    ADMINISTRATIVE
        .contains(&operation)
        .then_some(OperationAccess::Administrator)
}

const PUBLIC: [&str; 12] = [
    "ChangePassword",
    "ConfirmForgotPassword",
    "ConfirmSignUp",
    "ForgotPassword",
    "GetTokensFromRefreshToken",
    "GetUser",
    "GlobalSignOut",
    "InitiateAuth",
    "ResendConfirmationCode",
    "RespondToAuthChallenge",
    "RevokeToken",
    "SignUp",
];

const ADMINISTRATIVE: [&str; 18] = [
    "AdminAddUserToGroup",
    "AdminConfirmSignUp",
    "AdminCreateUser",
    "AdminDeleteUser",
    "AdminDisableUser",
    "AdminEnableUser",
    "AdminGetUser",
    "AdminInitiateAuth",
    "AdminRespondToAuthChallenge",
    "AdminSetUserPassword",
    "AdminUserGlobalSignOut",
    "CreateGroup",
    "CreateUserPool",
    "CreateUserPoolClient",
    "DeleteUserPool",
    "DescribeUserPoolClient",
    "ListUsers",
    "UpdateUserPool",
];

/// Runs an operation for which [`access`] returned `Some`.
pub(crate) async fn run(operation: &str, call: &OperationCall<'_>) -> Result<Value, ApiError> {
    match access(operation) {
        Some(OperationAccess::Public) => Box::pin(run_public(operation, call)).await,
        Some(OperationAccess::Administrator) if operation.starts_with("Admin") => {
            Box::pin(run_admin(operation, call)).await
        }
        Some(OperationAccess::Administrator) => Box::pin(run_directory(operation, call)).await,
        None => Err(unknown_operation(operation)),
    }
}

pub(crate) fn unknown_operation(operation: &str) -> ApiError {
    ApiError::new(
        ExceptionKind::UnknownOperation,
        format!("The operation {operation} is not supported"),
    )
}

async fn run_public(operation: &str, call: &OperationCall<'_>) -> Result<Value, ApiError> {
    match operation {
        "ChangePassword" => passwords::change(call, call.read()?).await,
        "ConfirmForgotPassword" => passwords::confirm_forgot(call, call.read()?).await,
        "ConfirmSignUp" => sign_up::confirm(call, call.read()?).await,
        "ForgotPassword" => passwords::forgot(call, call.read()?).await,
        "GetTokensFromRefreshToken" => refresh::get_tokens(call, call.read()?).await,
        "GetUser" => account::get(call, call.read()?).await,
        "GlobalSignOut" => account::sign_out(call, call.read()?).await,
        "InitiateAuth" => sign_in::initiate(call, call.read()?).await,
        "ResendConfirmationCode" => sign_up::resend(call, call.read()?).await,
        "RespondToAuthChallenge" => challenges::respond(call, call.read()?).await,
        "RevokeToken" => refresh::revoke(call, call.read()?).await,
        "SignUp" => sign_up::sign_up(call, call.read()?).await,
        other => Err(unknown_operation(other)),
    }
}

async fn run_admin(operation: &str, call: &OperationCall<'_>) -> Result<Value, ApiError> {
    match operation {
        "AdminAddUserToGroup" => groups::add_user(call, call.read()?).await,
        "AdminConfirmSignUp" => admin_users::confirm_sign_up(call, call.read()?).await,
        "AdminCreateUser" => admin_users::create(call, call.read()?).await,
        "AdminDeleteUser" => admin_users::delete(call, call.read()?).await,
        "AdminDisableUser" => admin_users::set_enabled(call, call.read()?, false).await,
        "AdminEnableUser" => admin_users::set_enabled(call, call.read()?, true).await,
        "AdminGetUser" => admin_users::get(call, call.read()?).await,
        "AdminInitiateAuth" => sign_in::admin_initiate(call, call.read()?).await,
        "AdminRespondToAuthChallenge" => challenges::admin_respond(call, call.read()?).await,
        "AdminSetUserPassword" => admin_users::set_password(call, call.read()?).await,
        "AdminUserGlobalSignOut" => admin_users::sign_out(call, call.read()?).await,
        other => Err(unknown_operation(other)),
    }
}

async fn run_directory(operation: &str, call: &OperationCall<'_>) -> Result<Value, ApiError> {
    match operation {
        "CreateGroup" => groups::create(call, call.read()?).await,
        "CreateUserPool" => user_pools::create(call, call.read()?).await,
        "CreateUserPoolClient" => app_clients::create(call, call.read()?).await,
        "DeleteUserPool" => user_pools::delete(call, call.read()?).await,
        "DescribeUserPoolClient" => app_clients::describe(call, &call.read()?),
        "ListUsers" => admin_users::list(call, call.read()?).await,
        "UpdateUserPool" => user_pools::update(call, call.read()?).await,
        other => Err(unknown_operation(other)),
    }
}
