//! Values of a record, and who takes them.

/// A value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Unknown or not applicable.
    None,
    /// A flag.
    Bool(bool),
    /// A count, a size or a time in ns.
    Int(i64),
    /// A mean or a quantile.
    Float(f64),
    /// A name or an address.
    Text(String),
    /// Counts, sizes or times in ns, in order of time.
    Ints(Vec<i64>),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}
impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Int(i64::try_from(value).unwrap_or(i64::MAX))
    }
}
impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}
impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}
impl From<Vec<i64>> for Value {
    fn from(value: Vec<i64>) -> Self {
        Self::Ints(value)
    }
}
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}
impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}
impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

/// Receives the fields of a record in their fixed order.
pub trait Fields {
    /// Takes one field.
    fn field(&mut self, name: &'static str, value: Value);

    /// The fields that follow, until [`Fields::leave`], belong to this side.
    fn enter(&mut self, _side: &'static str) {}

    /// The fields of a side are over.
    fn leave(&mut self) {}
}

impl Fields for Vec<(&'static str, Value)> {
    fn field(&mut self, name: &'static str, value: Value) {
        self.push((name, value));
    }
}
