"""Large georeferenced scenes: two GeoTIFFs of one place, tile by tile, to one map, polygons and a sentence.

Only modules that read or write rasters import rasterio, which is the extra ``geo``; a job's config does not.
"""
