"""What tests share. A test that is listed as a gate names the product's inside through these modules only."""
