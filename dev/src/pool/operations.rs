//! The operations of the API, one function each: they check parameters and permissions, and return
//! the response value or an [`ApiError`].

mod app_clients;
mod attributes;
mod challenges;
mod custom_auth;
mod groups;
mod refresh;
mod sign_in;
mod sign_up;
mod user_pools;
mod users;

pub(crate) use self::app_clients::create_client;
pub(crate) use self::sign_up::new_user;
pub(crate) use self::user_pools::create_pool;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ApiResult};

/// The response of an operation.
type Answer = ApiResult<Value>;

/// Parses a request. Unknown members are ignored, as in AWS.
fn parse<T: DeserializeOwned>(body: &[u8]) -> ApiResult<T> {
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let missing = text.strip_prefix("missing field `");
        match missing.and_then(|rest| rest.split('`').next()) {
            // Names begin in lower case in the messages.
            Some(member) => {
                let (first, rest) = member.split_at(1);
                ApiError::missing(&(first.to_ascii_lowercase() + rest))
            }
            None => ApiError::unreadable("The request body cannot be read"),
        }
    })
}

/// Returns the response of an operation without output.
fn empty_response() -> Value {
    json!({})
}

/// Defines the operations: those that credentials in the body authorize, such as an access token,
/// and those that need a signature (SigV4) with the administrator's access key.
macro_rules! operations {
    (public { $($public:literal => $public_function:path,)+ } signed { $($signed:literal => $function:path,)+ }) => {
        /// Runs an operation.
        pub(crate) async fn run(
            operation: &str,
            context: &PoolContext,
            check_signature: impl FnOnce() -> ApiResult,
            body: &[u8],
        ) -> Answer {
            match operation {
                $($public => Box::pin($public_function(context, parse(body)?)).await,)+
                $($signed => {
                    check_signature()?;
                    Box::pin($function(context, parse(body)?)).await
                })+
                other => Err(ApiError::new(
                    "UnknownOperationException",
                    format!("The operation {other} is not supported"),
                )),
            }
        }
    };
}

operations! {
    public {
        "DeleteUser" => users::delete_own,
        "GetTokensFromRefreshToken" => refresh::get_tokens,
        "GetUser" => users::get_own,
        "InitiateAuth" => sign_in::initiate,
        "RespondToAuthChallenge" => challenges::respond,
        "RevokeToken" => refresh::revoke,
        "SignUp" => sign_up::sign_up,
    }
    signed {
        "AdminAddUserToGroup" => groups::add_user,
        "AdminConfirmSignUp" => users::confirm_sign_up,
        "AdminCreateUser" => users::create,
        "AdminDeleteUser" => users::delete,
        "AdminDisableUser" => users::disable,
        "AdminEnableUser" => users::enable,
        "AdminGetUser" => users::get,
        "AdminListGroupsForUser" => groups::list_of_user,
        "AdminRemoveUserFromGroup" => groups::remove_user,
        "AdminSetUserPassword" => users::set_password,
        "AdminUpdateUserAttributes" => users::update_attributes,
        "AdminUserGlobalSignOut" => users::sign_out,
        "CreateGroup" => groups::create,
        "CreateUserPool" => user_pools::create,
        "CreateUserPoolClient" => app_clients::create,
        "DescribeUserPool" => user_pools::describe,
        "DescribeUserPoolClient" => app_clients::describe,
        "ListGroups" => groups::list,
        "ListUsers" => users::list,
    }
}
