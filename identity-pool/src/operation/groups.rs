//! Groups of a pool.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, OfPool, OfUser, nothing};
use crate::fault::{Fault, Kind};
use crate::store::GroupRow;
use crate::user::{User, seconds};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Group {
    user_pool_id: String,
    group_name: String,
    description: Option<String>,
    precedence: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Member {
    user_pool_id: String,
    username: String,
    group_name: String,
}

pub(super) async fn create(call: &Call<'_>, request: Group) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let named = (1..=128).contains(&request.group_name.len())
        && !request.group_name.contains(char::is_whitespace);
    if !named {
        return Err(Fault::invalid(
            "GroupName must have 1 to 128 characters and no spaces",
        ));
    }
    let now = call.server.clock.now().0;
    let group = GroupRow {
        pool_id: pool.id.clone(),
        name: request.group_name,
        description: request.description,
        precedence: request.precedence,
        created_at: now,
        updated_at: now,
    };
    match call.server.store.add_group(&group).await {
        Err(error) if postern_common::database::is_unique_violation(&error) => Err(Fault::new(
            Kind::GroupExists,
            "A group with the name already exists.",
        )),
        outcome => {
            outcome?;
            Ok(json!({"Group": to_group_type(&group)}))
        }
    }
}

async fn find(call: &Call<'_>, pool_id: &str, name: &str) -> Result<GroupRow, Fault> {
    call.server.directory.pool(pool_id)?;
    let found = call.server.store.group(pool_id, name).await?;
    found.ok_or_else(|| Fault::new(Kind::ResourceNotFound, "Group not found."))
}

pub(super) async fn get(call: &Call<'_>, request: Group) -> Result<Value, Fault> {
    let group = find(call, &request.user_pool_id, &request.group_name).await?;
    Ok(json!({"Group": to_group_type(&group)}))
}

pub(super) async fn update(call: &Call<'_>, request: Group) -> Result<Value, Fault> {
    let mut group = find(call, &request.user_pool_id, &request.group_name).await?;
    group.description = request.description.or(group.description);
    group.precedence = request.precedence.or(group.precedence);
    group.updated_at = call.server.clock.now().0;
    call.server
        .store
        .update_group(&group, call.server.clock.now())
        .await?;
    Ok(json!({"Group": to_group_type(&group)}))
}

pub(super) async fn delete(call: &Call<'_>, request: Group) -> Result<Value, Fault> {
    find(call, &request.user_pool_id, &request.group_name).await?;
    call.server
        .store
        .delete_group(&request.user_pool_id, &request.group_name)
        .await?;
    Ok(nothing())
}

pub(super) async fn list(call: &Call<'_>, request: OfPool) -> Result<Value, Fault> {
    let pool = call.server.directory.pool(&request.user_pool_id)?;
    let groups = call.server.store.groups(&pool.id).await?;
    Ok(json!({"Groups": groups.iter().map(to_group_type).collect::<Vec<_>>()}))
}

pub(super) async fn of_user(call: &Call<'_>, request: OfUser) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let groups = call.server.store.groups_of(&user).await?;
    Ok(json!({"Groups": groups.iter().map(to_group_type).collect::<Vec<_>>()}))
}

pub(super) async fn users(call: &Call<'_>, request: Group) -> Result<Value, Fault> {
    let group = find(call, &request.user_pool_id, &request.group_name).await?;
    let users = call
        .server
        .store
        .members(&group.pool_id, &group.name)
        .await?;
    Ok(json!({"Users": users.iter().map(User::to_user_type).collect::<Vec<_>>()}))
}

pub(super) async fn add_user(call: &Call<'_>, request: Member) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let group = find(call, &request.user_pool_id, &request.group_name).await?;
    call.server.store.join_group(&user, &group.name).await?;
    Ok(nothing())
}

pub(super) async fn remove_user(call: &Call<'_>, request: Member) -> Result<Value, Fault> {
    let user = call
        .admin_user(&request.user_pool_id, &request.username)
        .await?;
    let group = find(call, &request.user_pool_id, &request.group_name).await?;
    call.server.store.leave_group(&user, &group.name).await?;
    Ok(nothing())
}

fn to_group_type(group: &GroupRow) -> Value {
    let mut value = json!({
        "GroupName": group.name,
        "UserPoolId": group.pool_id,
        "CreationDate": seconds(group.created_at),
        "LastModifiedDate": seconds(group.updated_at),
    });
    if let Some(description) = &group.description {
        value["Description"] = description.as_str().into();
    }
    if let Some(precedence) = group.precedence {
        value["Precedence"] = precedence.into();
    }
    value
}
