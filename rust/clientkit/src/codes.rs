//! Names of the error codes that end up in a failure's detail.

/// The name of an HTTP/3 error code (RFC 9114, section 8.1).
#[must_use]
pub fn http3_name(code: u64) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "H3_NO_ERROR",
        "H3_GENERAL_PROTOCOL_ERROR",
        "H3_INTERNAL_ERROR",
        "H3_STREAM_CREATION_ERROR",
        "H3_CLOSED_CRITICAL_STREAM",
        "H3_FRAME_UNEXPECTED",
        "H3_FRAME_ERROR",
        "H3_EXCESSIVE_LOAD",
        "H3_ID_ERROR",
        "H3_SETTINGS_ERROR",
        "H3_MISSING_SETTINGS",
        "H3_REQUEST_REJECTED",
        "H3_REQUEST_CANCELLED",
        "H3_REQUEST_INCOMPLETE",
        "H3_MESSAGE_ERROR",
        "H3_CONNECT_ERROR",
        "H3_VERSION_FALLBACK",
    ];
    usize::try_from(code.checked_sub(0x100)?)
        .ok()
        .and_then(|index| NAMES.get(index).copied())
}

/// The name of a QUIC transport error code (RFC 9000, section 20.1).
#[must_use]
pub fn quic_name(code: u64) -> Option<&'static str> {
    const NAMES: [&str; 17] = [
        "NO_ERROR",
        "INTERNAL_ERROR",
        "CONNECTION_REFUSED",
        "FLOW_CONTROL_ERROR",
        "STREAM_LIMIT_ERROR",
        "STREAM_STATE_ERROR",
        "FINAL_SIZE_ERROR",
        "FRAME_ENCODING_ERROR",
        "TRANSPORT_PARAMETER_ERROR",
        "CONNECTION_ID_LIMIT_ERROR",
        "PROTOCOL_VIOLATION",
        "INVALID_TOKEN",
        "APPLICATION_ERROR",
        "CRYPTO_BUFFER_EXCEEDED",
        "KEY_UPDATE_ERROR",
        "AEAD_LIMIT_REACHED",
        "NO_VIABLE_PATH",
    ];
    usize::try_from(code)
        .ok()
        .and_then(|index| NAMES.get(index).copied())
}

/// The name of a TLS alert that is likely to be met (RFC 8446, section 6).
#[must_use]
pub fn alert_name(alert: u64) -> Option<&'static str> {
    Some(match alert {
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        48 => "unknown_ca",
        70 => "protocol_version",
        80 => "internal_error",
        112 => "unrecognized_name",
        120 => "no_application_protocol",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_the_tables() {
        assert_eq!(
            (http3_name(0xff), http3_name(0x100)),
            (None, Some("H3_NO_ERROR"))
        );
        assert_eq!(
            (http3_name(0x110), http3_name(0x111)),
            (Some("H3_VERSION_FALLBACK"), None)
        );
        assert_eq!(
            (quic_name(0), quic_name(0x10), quic_name(0x11)),
            (Some("NO_ERROR"), Some("NO_VIABLE_PATH"), None)
        );
        assert_eq!((alert_name(48), alert_name(1)), (Some("unknown_ca"), None));
        assert_eq!((http3_name(u64::MAX), quic_name(u64::MAX)), (None, None));
    }
}
