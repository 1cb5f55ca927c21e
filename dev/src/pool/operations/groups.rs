//! Operations on groups.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Answer;
use super::user_pools::PoolRequest;
use super::users::{UserRequest, change};
use crate::pool::context::PoolContext;
use crate::pool::error::ApiError;
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
    #[serde(flatten)]
    user: UserRequest,
    group_name: String,
}

pub(super) async fn create(context: &PoolContext, request: GroupRequest) -> Answer {
    let GroupRequest {
        user_pool_id,
        group_name,
    } = request;
    let group = json!({"Group": group_type(&group_name, &user_pool_id)});
    let add = |pool: &mut UserPool| {
        if pool.groups.insert(group_name) {
            return Ok(());
        }
        Err(ApiError::new(
            "GroupExistsException",
            "A group with the name already exists.",
        ))
    };
    context.update_pool(&user_pool_id, add).await?;
    Ok(group)
}

fn group_type(name: &str, pool_id: &str) -> Value {
    json!({"GroupName": name, "UserPoolId": pool_id})
}

/// ListGroups. Returns all groups in one page.
pub(super) async fn list(context: &PoolContext, request: PoolRequest) -> Answer {
    let pool = context.pool(&request.user_pool_id)?;
    Ok(groups_type(&pool.groups, &pool.id))
}

/// AdminListGroupsForUser. Returns all groups in one page.
pub(super) async fn list_of_user(context: &PoolContext, request: UserRequest) -> Answer {
    let user = context.find_user(&request.user_pool_id, &request.username)?;
    Ok(groups_type(&user.groups, &user.pool_id))
}

fn groups_type(names: &BTreeSet<String>, pool_id: &str) -> Value {
    let groups = names.iter().map(|name| group_type(name, pool_id));
    json!({ "Groups": groups.collect::<Vec<_>>() })
}

pub(super) async fn add_user(context: &PoolContext, request: MembershipRequest) -> Answer {
    change_groups(context, request, |user, group| user.groups.insert(group)).await
}

pub(super) async fn remove_user(context: &PoolContext, request: MembershipRequest) -> Answer {
    change_groups(context, request, |user, group| user.groups.remove(&group)).await
}

async fn change_groups(
    context: &PoolContext,
    MembershipRequest { user, group_name }: MembershipRequest,
    change_one: impl FnOnce(&mut User, String) -> bool,
) -> Answer {
    let pool = context.pool(&user.user_pool_id)?;
    context.find_user(&pool.id, &user.username)?;
    if !pool.groups.contains(&group_name) {
        return Err(ApiError::new(
            "ResourceNotFoundException",
            "Group not found.",
        ));
    }
    let change_one = |user: &mut User| {
        change_one(user, group_name);
    };
    change(context, &user, change_one).await
}
