//! How records are declared.

/// A field of a record, for the classes of Python.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type in Rust.
    pub kind: &'static str,
    /// What it means; empty where the name says it.
    pub meaning: &'static str,
}

/// Declares a record: its arguments, what is computed from them first, and each field with its value.
macro_rules! record {
    (
        $(#[doc = $about:literal])*
        $name:ident($($argument:ident: $type:ty),*) { $($before:tt)* }
        $($(#[doc = $meaning:literal])* $field:ident: $kind:ty = $value:expr,)*
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs, reason = "some names say it")]
        pub struct $name {
            $($(#[doc = $meaning])* pub $field: $kind,)*
        }

        impl $name {
            /// The fields, in order.
            pub const FIELDS: &[$crate::record::fields::Field] = &[$($crate::record::fields::Field {
                name: stringify!($field),
                kind: stringify!($kind),
                meaning: concat!($($meaning),*),
            }),*];

            /// Reads the record off the engine's state.
            #[must_use]
            #[allow(clippy::too_many_lines, reason = "one line per field")]
            pub fn new($($argument: $type),*) -> Self {
                $($before)*
                Self { $($field: $value),* }
            }
        }

        /// A dictionary, by PyO3's conversions and interned names: with `pythonize`, whose names are new strings for each
        /// record, a capture of short connections takes twice the time.
        #[cfg(feature = "python")]
        impl<'py> pyo3::IntoPyObject<'py> for $name {
            type Target = pyo3::types::PyDict;
            type Output = pyo3::Bound<'py, Self::Target>;
            type Error = pyo3::PyErr;

            fn into_pyobject(self, py: pyo3::Python<'py>) -> Result<Self::Output, Self::Error> {
                use pyo3::types::PyDictMethods;
                let dict = pyo3::types::PyDict::new(py);
                $(dict.set_item(pyo3::intern!(py, stringify!($field)), self.$field)?;)*
                Ok(dict)
            }
        }
    };
}
pub(super) use record;
