"""The Model Context Protocol over the operations of the runtime: tools, tasks, forms, resources."""
