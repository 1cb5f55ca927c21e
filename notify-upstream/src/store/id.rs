//! The encoding of identifiers: `uuid` in PostgreSQL, hyphenated text in SQLite and in the JSON of
//! parameters.

use serde::{Serialize, Serializer};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::sqlite::{SqliteArgumentsBuffer, SqliteTypeInfo, SqliteValueRef};
use sqlx::{Decode, Encode, Postgres, Sqlite, Type};
use uuid::Uuid;

use crate::notification::NotificationId;

/// The object identifiers of `uuid` and `uuid[]` in `pg_type`.
const UUID: Oid = Oid(2950);
const UUID_ARRAY: Oid = Oid(2951);

impl Type<Postgres> for NotificationId {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID)
    }

    fn compatible(info: &PgTypeInfo) -> bool {
        info.oid() == Some(UUID)
    }
}

impl PgHasArrayType for NotificationId {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(UUID_ARRAY)
    }
}

impl Encode<'_, Postgres> for NotificationId {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        buffer.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
}

impl Decode<'_, Postgres> for NotificationId {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        Ok(Self(match value.format() {
            PgValueFormat::Binary => Uuid::from_slice(value.as_bytes()?)?,
            PgValueFormat::Text => Uuid::try_parse(value.as_str()?)?,
        }))
    }
}

impl Type<Sqlite> for NotificationId {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }
}

impl Encode<'_, Sqlite> for NotificationId {
    fn encode_by_ref(&self, buffer: &mut SqliteArgumentsBuffer) -> Result<IsNull, BoxDynError> {
        <String as Encode<Sqlite>>::encode(self.to_string(), buffer)
    }
}

impl<'r> Decode<'r, Sqlite> for NotificationId {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        Ok(Self(Uuid::try_parse(<&str as Decode<Sqlite>>::decode(
            value,
        )?)?))
    }
}

impl Serialize for NotificationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
