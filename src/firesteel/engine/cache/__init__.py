"""Keys and values in pages: memory, scales, the pool of pages and each request's page table."""
