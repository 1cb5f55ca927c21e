//! Operations on groups.

use serde::Deserialize;
use serde_json::{Value, json};

use super::{OperationCall, empty_response};
use crate::pool::error::{ApiError, ExceptionKind};
use crate::pool::model::seconds;
use crate::pool::store::GroupRow;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct GroupRequest {
    user_pool_id: String,
    group_name: String,
    description: Option<String>,
    precedence: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct MembershipRequest {
    user_pool_id: String,
    username: String,
    group_name: String,
}

pub(super) async fn create(
    call: &OperationCall<'_>,
    request: GroupRequest,
) -> Result<Value, ApiError> {
    let pool = call.context.directory.pool(&request.user_pool_id)?;
    let named = (1..=128).contains(&request.group_name.len())
        && !request.group_name.contains(char::is_whitespace);
    if !named {
        return Err(ApiError::invalid(
            "GroupName must have 1 to 128 characters and no spaces",
        ));
    }
    let now = call.context.clock.now().0;
    let group = GroupRow {
        pool_id: pool.id.clone(),
        name: request.group_name,
        description: request.description,
        precedence: request.precedence,
        created_at: now,
        updated_at: now,
    };
    match call.context.store.add_group(&group).await {
        Err(error) if postern_common::database::is_unique_violation(&error) => Err(ApiError::new(
            ExceptionKind::GroupExists,
            "A group with the name already exists.",
        )),
        outcome => {
            outcome?;
            Ok(json!({"Group": to_group_type(&group)}))
        }
    }
}

async fn find_group(
    call: &OperationCall<'_>,
    pool_id: &str,
    name: &str,
) -> Result<GroupRow, ApiError> {
    call.context.directory.pool(pool_id)?;
    let found = call.context.store.group(pool_id, name).await?;
    found.ok_or_else(|| ApiError::new(ExceptionKind::ResourceNotFound, "Group not found."))
}

pub(super) async fn add_user(
    call: &OperationCall<'_>,
    request: MembershipRequest,
) -> Result<Value, ApiError> {
    let user = call
        .find_user(&request.user_pool_id, &request.username)
        .await?;
    let group = find_group(call, &request.user_pool_id, &request.group_name).await?;
    call.context.store.join_group(&user, &group.name).await?;
    Ok(empty_response())
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
