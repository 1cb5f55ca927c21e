//! Operations on groups.

use serde::Deserialize;
use serde_json::{Value, json};

use super::empty_response;
use crate::pool::context::PoolContext;
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::{User, UserPool};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GroupRequest {
    user_pool_id: String,
    group_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MembershipRequest {
    user_pool_id: String,
    username: String,
    group_name: String,
}

pub(super) async fn create(
    context: &PoolContext,
    request: GroupRequest,
) -> Result<Value, ApiError> {
    let GroupRequest {
        user_pool_id,
        group_name,
    } = request;
    let named = (1..=128).contains(&group_name.len()) && !group_name.contains(char::is_whitespace);
    if !named {
        return Err(ApiError::invalid(
            "GroupName must have 1 to 128 characters and no spaces",
        ));
    }
    let group = json!({"Group": {"GroupName": group_name, "UserPoolId": user_pool_id}});
    let add = |pool: &mut UserPool| {
        if pool.groups.insert(group_name) {
            return Ok(());
        }
        Err(ApiError::new(
            ExceptionKind::GroupExists,
            "A group with the name already exists.",
        ))
    };
    context.update_pool(&user_pool_id, add).await?;
    Ok(group)
}

pub(super) async fn add_user(
    context: &PoolContext,
    request: MembershipRequest,
) -> Result<Value, ApiError> {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    let pool = context.pool(&request.user_pool_id)?;
    if !pool.groups.contains(&request.group_name) {
        return Err(ApiError::new(
            ExceptionKind::ResourceNotFound,
            "Group not found.",
        ));
    }
    let join = |user: &mut User| {
        user.groups.insert(request.group_name);
        Ok(())
    };
    context.update_user(&user, join).await?;
    Ok(empty_response())
}
