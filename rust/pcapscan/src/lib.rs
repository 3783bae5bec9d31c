//! Capture engine: packets in, one record per connection out.
