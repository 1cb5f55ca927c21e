//! The operations of the API, one function each.
//!
//! Input: the context and a request. Output: the response value or an [`ApiError`]. Operations check
//! parameters and permissions, and depend on `context`, `tokens`, and the layers below.

mod account;
mod admin_users;
mod app_clients;
mod attributes;
mod challenges;
mod custom_auth;
mod groups;
mod refresh;
mod sign_in;
mod sign_up;
mod user_pools;

pub(crate) use self::app_clients::create_client;
pub(crate) use self::sign_up::new_user;
pub(crate) use self::user_pools::create_pool;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ApiResult, ExceptionKind};

/// The authentication that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationAccess {
    /// No signature; credentials in the body, such as an access token, authorize the call.
    Public,
    /// A signature (SigV4) with the administrator's access key.
    Administrator,
}

/// The response of an operation.
type Answer = ApiResult<Value>;

/// Parses a request. Unknown members are ignored, as in AWS.
fn parse<T: DeserializeOwned>(body: &[u8]) -> ApiResult<T> {
    serde_json::from_slice(body).map_err(|error| {
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

/// Defines the operations: name, function, and the authentication that they require.
macro_rules! operations {
    ($($access:ident { $($name:literal => $function:path,)+ })+) => {
        /// Returns the authentication that an operation requires, or `None` if it is unknown.
        pub(crate) fn access(operation: &str) -> Option<OperationAccess> {
            match operation {
                $($($name)|+ => Some(OperationAccess::$access),)+
                _ => None,
            }
        }

        /// Runs an operation.
        pub(crate) async fn run(
            operation: &str,
            context: &PoolContext,
            body: &[u8],
        ) -> Answer {
            match operation {
                $($($name => Box::pin($function(context, parse(body)?)).await,)+)+
                other => Err(unknown_operation(other)),
            }
        }
    };
}

operations! {
    Public {
        "DeleteUser" => account::delete,
        "GetTokensFromRefreshToken" => refresh::get_tokens,
        "GetUser" => account::get,
        "InitiateAuth" => sign_in::initiate,
        "RespondToAuthChallenge" => challenges::respond,
        "RevokeToken" => refresh::revoke,
        "SignUp" => sign_up::sign_up,
    }
    Administrator {
        "AdminAddUserToGroup" => groups::add_user,
        "AdminConfirmSignUp" => admin_users::confirm_sign_up,
        "AdminCreateUser" => admin_users::create,
        "AdminDeleteUser" => admin_users::delete,
        "AdminDisableUser" => admin_users::disable,
        "AdminEnableUser" => admin_users::enable,
        "AdminGetUser" => admin_users::get,
        "AdminListGroupsForUser" => groups::list_of_user,
        "AdminRemoveUserFromGroup" => groups::remove_user,
        "AdminSetUserPassword" => admin_users::set_password,
        "AdminUpdateUserAttributes" => admin_users::update_attributes,
        "AdminUserGlobalSignOut" => admin_users::sign_out,
        "CreateGroup" => groups::create,
        "CreateUserPool" => user_pools::create,
        "CreateUserPoolClient" => app_clients::create,
        "DescribeUserPool" => user_pools::describe,
        "DescribeUserPoolClient" => app_clients::describe,
        "ListGroups" => groups::list,
        "ListUsers" => admin_users::list,
    }
}

pub(crate) fn unknown_operation(operation: &str) -> ApiError {
    ApiError::new(
        ExceptionKind::UnknownOperation,
        format!("The operation {operation} is not supported"),
    )
}
